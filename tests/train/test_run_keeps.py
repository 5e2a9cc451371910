"""What remains of a run: the last checkpoints, the best, and their mean, however it was cut."""

import os
import signal

import pytest
import torch
from runs import Counting, equal, run, through, weights

import clearhead as ch


def test_the_last_checkpoints_and_the_best_remain(tmp_path):
    made = run(tmp_path / "run", steps=10, save=1, check=100, keep=3)
    made.best_loss = -1.0  # nothing will be better
    through(made)
    kept = sorted(path.name for path in (tmp_path / "run" / "steps").iterdir())
    assert kept == ["00000008", "00000009", "00000010"]


def test_patience_ends_a_run_that_no_longer_gets_better(tmp_path):
    result = through(
        run(tmp_path / "run", steps=1000, check=1, patience=3, **{"train.optimizer.lr": 1e-12})
    )
    assert result.status == "patience"
    assert result.step < 100


def test_the_best_model_is_found_by_a_run_that_was_killed_before_it_pointed_to_it(
    tmp_path, monkeypatch
):
    options = {"steps": 20, "check": 4, "save": 100, "train.optimizer.lr": 1e-2}
    made = run(tmp_path / "run", **options)
    out = tmp_path / "run"

    def killed(best):
        raise SystemError

    def watch(progress):
        if progress.step == 8:
            monkeypatch.setattr(made.checkpoints, "tidy", killed)
        return True

    with pytest.raises(SystemError):
        made.train(watch)
    assert (out / "best").readlink().name == "00000004"
    again = run(out, **options)
    again.resume()
    assert (out / "best").readlink().name == "00000008"
    again.best_loss = -1.0
    through(again, until=9)
    assert (out / "best" / "model.safetensors").exists()


def test_a_best_loss_of_zero_stays_the_best(tmp_path):
    made = run(tmp_path / "run")
    made.update_best(0.0)
    made.save_checkpoint()
    again = run(tmp_path / "run")
    again.resume()
    assert again.best_loss == 0.0


def interrupted_at(made, step, monkeypatch):
    """Ctrl-C while that step is taken."""
    move = made.optimizer.step

    def interrupted(factor):
        if made.step == step - 1:
            os.kill(os.getpid(), signal.SIGINT)
        move(factor)

    monkeypatch.setattr(made.optimizer, "step", interrupted)


@pytest.mark.parametrize("cuts", [(7,), (4, 5), (8, 12), (11,)])
def test_what_is_kept_best_and_averaged_does_not_depend_on_how_a_run_was_cut(
    cuts, tmp_path, monkeypatch
):
    options = {"save": 3, "check": 4, "keep": 3, "average": 3, "train.optimizer.lr": 1e-2}
    through(run(tmp_path / "whole", **options))
    for cut in cuts:
        made = run(tmp_path / "cut", **options)
        made.resume()
        interrupted_at(made, cut, monkeypatch)
        assert through(made).status == "stopped"
    again = run(tmp_path / "cut", **options)
    again.resume()
    assert through(again).status == "done"
    whole, cut = (
        {path.name for path in (tmp_path / name / "steps").iterdir()} for name in ("whole", "cut")
    )
    assert whole == cut == {"00000006", "00000009", "00000012"}
    assert equal(weights(tmp_path / "whole" / "average"), weights(tmp_path / "cut" / "average"))
    assert (tmp_path / "whole" / "best").readlink() == (tmp_path / "cut" / "best").readlink()


def test_an_average_of_fewer_models_than_asked_for_says_so(tmp_path):
    told = []
    made = run(tmp_path / "run", save=6, keep=3, average=3)
    made.echo = told.append
    through(made)
    assert told == ["the average is of 2 checkpoints: there were no more, with one every 6 steps"]


def test_half_a_checkpoint_is_no_checkpoint(tmp_path):
    through(run(tmp_path / "run"), until=5)
    (tmp_path / "run" / "steps" / "00000009").mkdir()
    (tmp_path / "run" / "steps" / ".00000010.abc").mkdir()
    made = run(tmp_path / "run")
    assert made.resume()
    assert made.step == 5


@pytest.mark.parametrize("options", [{"ema": 0.9}, {"ema": 0.9, "precision": "bfloat16"}], ids=str)
def test_the_model_that_is_saved_is_the_one_that_was_validated(options, tmp_path):
    made = run(tmp_path / "run", check=3, **{"train.optimizer.lr": 1e-2}, **options)
    best = through(made).best_loss
    net = ch.load(tmp_path / "run" / "best", device="cpu", dtype="stored").net
    (batch,) = Counting().valid_batches()
    with torch.no_grad():
        total, count = net.loss(net(batch.tokens), batch.targets)
    assert float(total / count) == pytest.approx(best, rel=1e-6)
    assert not equal(dict(net.named_parameters()), dict(made.net.named_parameters()))


def test_the_mean_of_the_last_models_is_a_model(tmp_path):
    result = through(run(tmp_path / "run", check=3, save=3, keep=3, average=3))
    assert result.step == 12
    last = [weights(tmp_path / "run" / "steps" / f"{step:08d}") for step in (6, 9, 12)]
    for name, mean in weights(tmp_path / "run" / "average").items():
        torch.testing.assert_close(mean, sum(one[name] for one in last) / 3)
    with pytest.raises(
        ch.ClearheadError, match=r"train\.average = 3 is more than train\.keep = 2 checkpoints"
    ):
        run(tmp_path / "other", average=3)
