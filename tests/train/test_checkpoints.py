"""Checkpoints: which are kept, best and averaged does not depend on interruptions."""

import os
import signal

import pytest
import torch
from tiny_training import CountingDataset, load_weights, make_trainer, resume, run, same_tensors

import clearhead as ch

FAST = {"train.optimizer.lr": 1e-2}
STATES = ["{}", '{"step": 3}', '{"step": "3", "best_loss": 1}']


def checkpoint_names(output):
    return {path.name for path in (output / "checkpoints").iterdir()}


def test_last_checkpoints_are_kept(tmp_path):
    options = {"max_steps": 10, "save_every": 1, "eval_every": 100, "keep_checkpoints": 3}
    trainer = make_trainer(tmp_path, **options)
    trainer.best_loss = -1.0  # no step will be better
    run(trainer)
    assert checkpoint_names(tmp_path) == {"00000008", "00000009", "00000010"}


def test_best_link_is_repaired_after_a_kill(tmp_path, monkeypatch):
    options = {"max_steps": 20, "eval_every": 4, "save_every": 100, **FAST}
    trainer = make_trainer(tmp_path, **options)

    def kill(best_step):
        raise SystemError

    def on_report(progress):
        if progress.step == 8:
            monkeypatch.setattr(trainer.checkpoints, "prune", kill)
        return True

    with pytest.raises(SystemError):
        trainer.train(on_report)
    assert (tmp_path / "best").readlink().name == "00000004"
    resumed = resume(tmp_path, **options)
    assert (tmp_path / "best").readlink().name == "00000008"
    resumed.best_loss = -1.0
    run(resumed, until=9)
    assert (tmp_path / "best" / "model.safetensors").exists()


def test_best_loss_of_zero_is_restored(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.update_best(0.0)
    trainer.save_checkpoint()
    assert resume(tmp_path).best_loss == 0.0


def interrupt_at(trainer, step, monkeypatch):
    """Send Ctrl-C while a step is taken."""
    optimizer_step = trainer.optimizer.step

    def interrupted_step(lr_factor):
        if trainer.step == step - 1:
            os.kill(os.getpid(), signal.SIGINT)
        optimizer_step(lr_factor)

    monkeypatch.setattr(trainer.optimizer, "step", interrupted_step)


@pytest.mark.parametrize("steps", [(7,), (4, 5), (8, 12), (11,)])
def test_interrupts_do_not_change_what_is_kept_best_and_averaged(steps, tmp_path, monkeypatch):
    options = {
        "save_every": 3,
        "eval_every": 4,
        "keep_checkpoints": 3,
        "average_checkpoints": 3,
        **FAST,
    }
    uninterrupted = tmp_path / "uninterrupted"
    interrupted = tmp_path / "interrupted"
    run(make_trainer(uninterrupted, **options))
    for step in steps:
        trainer = make_trainer(interrupted, **options)
        trainer.resume()
        interrupt_at(trainer, step, monkeypatch)
        assert run(trainer).status == "interrupted"
    assert run(resume(interrupted, **options)).status == "completed"
    expected = {"00000006", "00000009", "00000012"}
    assert checkpoint_names(uninterrupted) == checkpoint_names(interrupted) == expected
    assert same_tensors(
        load_weights(uninterrupted / "average"), load_weights(interrupted / "average")
    )
    assert (uninterrupted / "best").readlink() == (interrupted / "best").readlink()


def test_average_of_fewer_checkpoints_is_reported(tmp_path):
    lines = []
    trainer = make_trainer(tmp_path, save_every=6, keep_checkpoints=3, average_checkpoints=3)
    trainer.echo = lines.append
    run(trainer)
    assert [line.partition(" checkpoints")[0] for line in lines] == ["averaged 2 instead of 3"]


def test_partial_checkpoint_is_ignored(tmp_path):
    run(make_trainer(tmp_path), until=5)
    (tmp_path / "checkpoints" / "00000009").mkdir()
    (tmp_path / "checkpoints" / ".00000010.abc").mkdir()
    assert resume(tmp_path).step == 5


@pytest.mark.parametrize(
    "options", [{"ema_decay": 0.9}, {"ema_decay": 0.9, "precision": "bfloat16"}], ids=str
)
def test_saved_model_is_the_one_that_was_validated(options, tmp_path):
    trainer = make_trainer(tmp_path, eval_every=3, **FAST, **options)
    best_loss = run(trainer).best_loss
    net = ch.load(tmp_path / "best", device="cpu", dtype="stored").net
    (batch,) = CountingDataset().valid_batches()
    with torch.no_grad():
        total, count = net.loss(net(batch.tokens), batch.targets)
    assert float(total / count) == pytest.approx(best_loss, rel=1e-6)
    assert not same_tensors(dict(net.named_parameters()), dict(trainer.net.named_parameters()))


def test_average_is_the_mean_of_the_last_checkpoints(tmp_path):
    options = {"eval_every": 3, "save_every": 3, "keep_checkpoints": 3, "average_checkpoints": 3}
    run(make_trainer(tmp_path, **options))
    last = [load_weights(tmp_path / "checkpoints" / f"{step:08d}") for step in (6, 9, 12)]
    for name, mean in load_weights(tmp_path / "average").items():
        torch.testing.assert_close(mean, sum(weights[name] for weights in last) / 3)


def test_average_needs_enough_checkpoints(tmp_path):
    with pytest.raises(ch.ClearheadError, match=r"train\.keep_checkpoints = 2"):
        make_trainer(tmp_path, average_checkpoints=3)


@pytest.mark.parametrize(
    "line", [b"5\n", b"[]\n", b'{"step": 3}\n', b'{"step": "3", "loss": 1}\n', b"\xff\n"]
)
def test_damaged_log_is_refused(tmp_path, line):
    run(make_trainer(tmp_path, max_steps=3))
    log = tmp_path / "log.jsonl"
    log.write_bytes(line + log.read_bytes())
    with pytest.raises(ch.ClearheadError, match=r"log\.jsonl is damaged"):
        run(resume(tmp_path, max_steps=4))


@pytest.mark.parametrize("state", STATES)
def test_damaged_training_state_is_refused(tmp_path, state):
    run(make_trainer(tmp_path, max_steps=3, eval_every=1))
    (tmp_path / "checkpoints" / "00000003" / "training_state.json").write_text(state)
    with pytest.raises(ch.ClearheadError, match=r"training_state\.json is damaged"):
        resume(tmp_path, max_steps=4)
