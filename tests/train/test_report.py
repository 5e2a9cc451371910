"""The training report, the messages of a run, and its loggers."""

import json
import math
import re
import sys
from html.parser import HTMLParser

import pytest
from loss_curves import converging, log_lines, memorizing, rising
from sample_data import SHORT_RUN, TINY_MODEL, sentences, write_labeled
from tiny_training import CountingDataset, WithoutValidation, make_trainer

import clearhead as ch
from clearhead.cli.training_display import TrainingDisplay
from clearhead.config.presets import MEASURED_ON
from clearhead.train import train as training
from clearhead.train.plots import MAX_POINTS, downsample, plot_loss, to_png
from clearhead.train.report import collect_report_data, expected_loss, next_commands, write_report
from clearhead.train.throughput import Throughput
from clearhead.train.train import (
    TensorBoardLogger,
    build_trainer,
    describe_run,
    load_config,
    run_training,
    train_and_report,
)

PNG_SIGNATURE = b"\x89PNG"


class Page(HTMLParser):
    """Text of a page, and everything it would load or run."""

    def __init__(self, html):
        super().__init__()
        self.text = ""
        self.loaded = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        sources = ("src", "href", "xlink:href", "data")
        self.loaded += [value for name, value in attributes if name in sources]
        self.loaded += [tag] if tag in ("script", "link", "iframe", "img") else []

    def handle_data(self, data):
        self.text += data


def train_with_report(output, **options):
    """Findings and page of a short run."""
    trainer = make_trainer(output, **{"max_steps": 24, "eval_every": 4, "log_every": 2, **options})
    throughput = Throughput.from_batches(trainer.model.config, [trainer.data.batch(0)])
    result = trainer.train(lambda progress: True)
    data = collect_report_data(trainer, "tiny-decoder", throughput)
    findings = write_report(output, data | {"status": result.status})
    return findings, Page((output / "report.html").read_text())


def train_on_text(folder, *, record_activations=False, preset="tiny-decoder", **changes):
    """The result and the messages of a run on a short text."""
    (folder / "a.txt").write_text("\n".join(sentences(200)))
    options = {
        "data.train": [str(folder / "a.txt")],
        "data.vocab_size": 300,
        "train.max_steps": 4,
        **TINY_MODEL,
        **SHORT_RUN,
        **changes,
    }
    messages = []
    result = run_training(
        load_config(preset, options),
        folder / "run",
        TrainingDisplay,
        messages.append,
        recipe=preset,
        device="cpu",
        record_activations=record_activations,
    )
    return result, messages


# --- page and curve


def test_report_is_self_contained_and_escaped(tmp_path):
    output = tmp_path / "a <b>run</b>"
    findings, page = train_with_report(output)
    assert (output / "curve.png").read_bytes().startswith(PNG_SIGNATURE)
    assert all(value.startswith("#") for value in page.loaded)  # markers inside the plots
    assert "a <b>run</b>" in page.text
    for text in (
        findings[0].message[1:],
        "completed",
        "clearhead generate",
        "tokens per second",
        "epochs trained",
        "train.max_steps",  # differs from the preset
    ):
        assert text in page.text
    assert not list(output.glob(".*"))


@pytest.mark.slow
def test_report_is_reproduced_from_the_folder(tmp_path):
    findings, _ = train_with_report(tmp_path)
    page = (tmp_path / "report.html").read_bytes()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 30, "lo')  # killed while writing
    assert write_report(tmp_path) == findings
    assert (tmp_path / "report.html").read_bytes() == page


@pytest.mark.slow
def test_report_without_validation(tmp_path):
    findings, _ = train_with_report(tmp_path, data=WithoutValidation())
    assert findings[0].name == "too early to tell"


def test_empty_log_is_refused(tmp_path):
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(ch.ClearheadError, match=r"log\.jsonl is empty"):
        write_report(tmp_path, {"config": ch.Config().to_dict()})


@pytest.mark.parametrize(
    "preset", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder", "tiny-images"]
)
def test_next_commands_fit_the_model(preset, tmp_path):
    commands = [command for _, command in next_commands(tmp_path / "my run", ch.presets[preset])]
    assert all("my run" in command for command in commands)
    assert any("generate" in command for command in commands) == (preset == "tiny-decoder")
    assert any("translate" in command for command in commands) == (preset == "tiny-encoder-decoder")


def test_long_curves_are_averaged():
    curve = downsample([(step, float(step % 2)) for step in range(100_001)])
    assert len(curve) <= MAX_POINTS
    assert curve[-1][0] == 100_000
    assert all(0.4 < value < 0.6 for _, value in curve[:-1])


@pytest.mark.parametrize(
    "lines", [log_lines(converging, steps=10), log_lines(memorizing, rising)], ids=["one", "many"]
)
@pytest.mark.parametrize("expected", [(), (100, 1.0, 2.0), (100, 1.0, 2.0, 900, 0.5, 1.0)], ids=len)
def test_every_log_can_be_plotted(lines, expected):
    assert to_png(plot_loss(lines, expected)).startswith(PNG_SIGNATURE)


@pytest.mark.parametrize(
    "changes", [{"d_model": 64}, {"train__batch_size": 8}, {"train__max_steps": 350}]
)
def test_expected_loss_does_not_hold_for_changed_options(changes):
    config = ch.presets["shakespeare-char-cpu"].replace(**changes)
    assert expected_loss(config, "shakespeare-char-cpu")[0] == ()


def test_expected_loss_holds_for_neutral_options_and_names_its_data():
    recipe = ch.presets["shakespeare-char-cpu"]
    neutral = {
        "data__train": ["mine.txt"],
        "train__seed": 3,
        "train__eval_every": 100,
        "vocab_size": 80,
    }
    expected = recipe.train.expected_loss, "tinyshakespeare"
    assert expected_loss(recipe.replace(**neutral), "shakespeare-char-cpu") == expected
    own = (1.0, 2.0, 3.0)
    config = recipe.replace(d_model=64, train__expected_loss=own)
    assert expected_loss(config, "shakespeare-char-cpu") == (own, "")
    measured = {name for name, config in ch.presets.items() if config.train.expected_loss}
    assert measured <= set(MEASURED_ON)


# --- messages


def test_without_terminal_there_is_one_line_per_validation(tmp_path, capsys):
    trainer = make_trainer(tmp_path, max_steps=8, eval_every=4)
    train_and_report(trainer, TrainingDisplay, print, "tiny-decoder")
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "step 4 of 8",
        "step 8 of 8",
        "completed at step 8",
        "too early to tell",
        "report",
        "generate text",
    ]
    assert "\r" not in output
    assert "\x1b" not in output
    step = r"step 4 of 8: loss [\d.]+, validation [\d.]+ \(best\), [\d,]+ tok/s, \d:\d\d left"
    assert re.fullmatch(step, lines[0])


@pytest.mark.parametrize(
    ("seconds_per_step", "first_step", "text"),
    [
        (10, 1, "about 2:46:30 to go, at 10 s per step; on a CPU, try a smaller recipe"),
        (1, 3, "about 16:37 to go, at 1 s per step"),
        (0.01, 0, ""),  # a short run
    ],
)
def test_long_runs_print_an_estimate_of_their_time(
    seconds_per_step, first_step, text, tmp_path, monkeypatch, capsys
):
    now = 0.0
    monkeypatch.setattr(training.time, "monotonic", lambda: now)
    estimate = training.TimeEstimate(make_trainer(tmp_path, max_steps=1000), print)
    for step in range(1, 20):
        now += seconds_per_step
        is_done = estimate(step)
        printed = capsys.readouterr().out
        assert printed.startswith(text if step == first_step else "")
        assert bool(printed) == (step == first_step)
        if is_done:
            break
    assert is_done


def test_failed_run_leaves_a_report(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=20, save_every=2)
    training_step = trainer.training_step

    def failing_step():
        if trainer.step == 7:
            trainer.net.final_norm.weight.data.fill_(math.nan)
        return training_step()

    trainer.training_step = failing_step
    with pytest.raises(ch.ClearheadError, match="nan"):
        train_and_report(trainer, TrainingDisplay, print, "tiny-decoder")
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "failed"
    assert "failed" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_completed_run_is_not_repeated(tmp_path):
    first, _ = train_on_text(tmp_path)
    names = ("log.jsonl", "report.json", "curve.png", "report.html")
    files = [tmp_path / "run" / name for name in names]
    times = [file.stat().st_mtime_ns for file in files]
    again, messages = train_on_text(tmp_path)
    assert again == first
    assert len(messages) == 1
    assert "raise train.max_steps" in messages[0]
    assert [file.stat().st_mtime_ns for file in files] == times
    _, messages = train_on_text(tmp_path, **{"train.average_checkpoints": 1})
    assert "completed at step 4" in " ".join(messages)
    assert (tmp_path / "run" / "average").exists()
    _, messages = train_on_text(tmp_path, **{"train.max_steps": 6})
    assert "resuming after step 4" in " ".join(messages)


def test_missing_report_of_a_completed_run_is_written(tmp_path):
    train_on_text(tmp_path)
    (tmp_path / "run" / "report.json").unlink()
    (tmp_path / "run" / "report.html").unlink()
    train_on_text(tmp_path)
    assert (tmp_path / "run" / "report.html").exists()


def test_report_links_to_the_training_trace(tmp_path):
    train_on_text(tmp_path)
    page = tmp_path / "run" / "report.html"
    assert "training_trace.png" not in page.read_text()
    options = {"record_activations": True, "train.max_steps": 6}
    _, messages = train_on_text(tmp_path, **options)
    assert "training_trace.png" in page.read_text()
    assert sum("training_trace.png" in message for message in messages) == 1
    assert len(train_on_text(tmp_path, **options)[1]) == 1


def test_description_counts_trainable_parameters(tmp_path):
    train_on_text(tmp_path, preset="tiny-encoder")
    changes = {
        "data.train": write_labeled(tmp_path),
        "train.init_from": str(tmp_path / "run" / "best"),
        "train.trainable": "head",
    }
    config = load_config("finetune-classify", changes)
    output = tmp_path / "tuned"
    trainer = build_trainer(config, output, resume=True, device="cpu", compile=False)
    parameters = list(trainer.net.parameters())
    num_parameters = sum(p.numel() for p in parameters)
    num_trainable = sum(p.numel() for p in parameters if p.requires_grad)
    description = f"{num_trainable:,} of {num_parameters:,} parameters trainable, "
    assert describe_run(trainer, "cpu")[-1].startswith(description)
    assert num_trainable < num_parameters


@pytest.mark.parametrize(
    ("batches_per_epoch", "text"), [(12, "12 steps (1 epoch)"), (6, "12 steps (2 epochs)")]
)
def test_description_counts_steps_and_epochs(batches_per_epoch, text, tmp_path):
    data = CountingDataset()
    data.batches_per_epoch = batches_per_epoch
    assert text in describe_run(make_trainer(tmp_path, data), "cpu")[-1]


def test_validation_without_the_average_is_reported(tmp_path, capsys):
    trainer = make_trainer(tmp_path, max_steps=8, eval_every=4, ema_decay=0.5)
    train_and_report(trainer, TrainingDisplay, print, "tiny-decoder")
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    raw = [(line["step"], line["raw_valid_loss"]) for line in lines if "raw_valid_loss" in line]
    printed = capsys.readouterr().out
    page = Page((tmp_path / "report.html").read_text()).text
    [(step, loss)] = raw
    assert step == 8
    assert f"without EMA {loss:.4f}" in printed
    assert f"{loss:.4f}" in page


def test_regression_reports_rmse(tmp_path, capsys):
    changes = {
        "model.head": {"kind": "regression"},
        "data.train": write_labeled(tmp_path),
        "data.label_column": "score",
    }
    train_on_text(tmp_path, preset="tiny-encoder", **changes)
    lines = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    roots = [f"{math.sqrt(line['valid_loss']):.4g}" for line in lines if "valid_loss" in line]
    printed = capsys.readouterr().out
    assert all(f"RMSE {root}" in printed for root in roots)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "RMSE" in page
    assert f"<b>{min(roots, key=float)}</b>" in page


# --- loggers


def test_tensorboard_has_each_step_once_after_a_kill(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first_step, last_step in ((0, 9), (6, 12)):  # the second process resumes from step 6
        trainer = make_trainer(tmp_path / "run", save_every=6, eval_every=3)
        logger = TensorBoardLogger(tmp_path, first_step)
        trainer.step = first_step

        def on_report(progress, logger=logger, last_step=last_step):
            logger.log(progress)
            return progress.step < last_step

        trainer.train(on_report)
        logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss/train")] == list(range(1, 13))
    assert [event.step for event in events.Scalars("loss/valid")] == [3, 6, 9, 12]


def test_missing_tensorboard_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ch.ClearheadError, match=r"pip install 'clearhead\[tensorboard\]'"):
        TensorBoardLogger(tmp_path, 0)


def test_unknown_logger_and_resume_mode_are_refused(tmp_path):
    with pytest.raises(ch.ClearheadError, match=r"logger 'print'.*tensorboard"):
        ch.train("tiny-decoder", tmp_path, logger="print")
    with pytest.raises(ch.ClearheadError, match="resume must be"):
        ch.train("tiny-decoder", tmp_path, resume="always")
