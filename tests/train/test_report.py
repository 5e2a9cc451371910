"""What a run leaves for people: the page is whole and needs no other, and tells what comes next."""

import json
import math
import sys
from html.parser import HTMLParser

import pytest
from courses import STEPS, learned, log, memorised, rising
from runs import Counting, run
from samples import NARROW, QUICK, labelled, sentences

import clearhead as ch
from clearhead.cli.progress_display import ProgressDisplay
from clearhead.config.presets import MEASURED_ON
from clearhead.train.diagnosis import diagnose
from clearhead.train.report import (
    MAX_POINTS,
    _expected_for,
    downsample,
    next_commands,
    plot_loss,
    report_data,
    to_png,
    write_report,
)
from clearhead.train.throughput import Throughput
from clearhead.train.train import (
    build_trainer,
    describe_run,
    load_config,
    run_training,
    train_and_report,
)


class Page(HTMLParser):
    """The text of a page, and whatever it would fetch or run."""

    def __init__(self):
        super().__init__()
        self.text = ""
        self.fetched = []
        self.open = []

    def handle_starttag(self, tag, attributes):
        self.fetched += [
            value for name, value in attributes if name in ("src", "href", "xlink:href", "data")
        ]
        self.fetched += [tag] if tag in ("script", "link", "iframe", "img") else []

    def handle_data(self, data):
        self.text += data


def written(out, **options):
    made = run(out, **{"steps": 24, "check": 4, "report": 2, **options})
    speed = Throughput.from_batches(made.model.config, [made.data.batch(0)], 1e11)
    result = made.train(lambda progress: True)
    findings = write_report(out, report_data(made, "tiny-decoder", speed) | {"end": result.status})
    page = Page()
    page.feed((out / "report.html").read_text())
    return findings, page


def test_a_run_leaves_a_picture_and_a_page_that_needs_no_other(tmp_path):
    findings, page = written(tmp_path / "a <b>run</b>")
    assert (tmp_path / "a <b>run</b>" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert all(value.startswith("#") for value in page.fetched)  # marks inside the drawings
    assert "a <b>run</b>" in page.text  # escaped: it is text, not a tag
    for words in (
        findings[0].message[1:],
        "all steps done",
        "clearhead generate",
        "tokens a second",
        "epochs seen",
    ):
        assert words in page.text
    assert "train.max_steps" in page.text  # an option that differs from the preset's
    assert not list((tmp_path / "a <b>run</b>").glob(".*"))


def test_the_report_can_be_written_again_from_the_folder_alone(tmp_path):
    first = written(tmp_path / "run")[0]
    page = (tmp_path / "run" / "report.html").read_bytes()
    with (tmp_path / "run" / "log.jsonl").open("a") as file:
        file.write('{"step": 30, "lo')  # killed while it wrote
    assert write_report(tmp_path / "run") == first
    assert (tmp_path / "run" / "report.html").read_bytes() == page


def test_a_run_without_validation_has_a_report_too(tmp_path):
    class Unchecked(Counting):
        def held_out(self):
            return iter(())

    assert written(tmp_path / "run", data=Unchecked())[0][0].name == "too early to tell"


def test_an_empty_log_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(ch.ClearheadError, match="holds no report yet"):
        write_report(tmp_path, {"config": ch.Config().to_dict()})


@pytest.mark.parametrize(
    "preset", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder", "tiny-pictures"]
)
def test_what_comes_next_fits_the_shape(preset, tmp_path):
    lines = [line for _, line in next_commands(tmp_path / "my run", ch.presets[preset])]
    assert all("my run" in line for line in lines)
    assert any("generate" in line for line in lines) == (preset == "tiny-decoder")
    assert any("translate" in line for line in lines) == (preset == "tiny-encoder-decoder")


def test_a_long_run_is_drawn_with_few_points():
    drawn = downsample([(step, float(step % 2)) for step in range(100_001)])
    assert len(drawn) <= MAX_POINTS
    assert drawn[-1][0] == 100_000
    assert all(0.4 < value < 0.6 for _, value in drawn[:-1])


@pytest.mark.parametrize(
    "lines", [log(learned, steps=10), log(memorised, rising)], ids=["one report", "many"]
)
@pytest.mark.parametrize("expected", [(), (100, 1.0, 2.0), (100, 1.0, 2.0, 900, 0.5, 1.0)], ids=len)
def test_every_log_can_be_drawn(lines, expected):
    assert to_png(plot_loss(lines, expected)).startswith(b"\x89PNG")


def test_tensorboard_has_each_point_once_after_a_kill(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from clearhead.train.train import TensorBoardLogger

    for first, last in ((0, 9), (6, 12)):  # the second process goes on from step 6
        made = run(tmp_path / "run", save=6, check=3)
        board = TensorBoardLogger(tmp_path, first)
        made.step = first
        made.train(
            lambda progress, board=board, last=last: board.log(progress) or progress.step < last
        )
        board.close()
    seen = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in seen.Scalars("loss/training")] == list(range(1, 13))
    assert [event.step for event in seen.Scalars("loss/validation")] == [3, 6, 9, 12]


def test_without_tensorboard_one_sentence_names_the_extra(tmp_path, monkeypatch):
    from clearhead.train.train import TensorBoardLogger

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ch.ClearheadError, match=r"pip install 'clearhead\[tensorboard\]'"):
        TensorBoardLogger(tmp_path, 0)


def test_without_a_terminal_there_is_a_line_for_each_validation_and_nothing_else(tmp_path, capsys):
    train_and_report(
        run(tmp_path / "run", steps=8, check=4), ProgressDisplay, print, "tiny-decoder", False, None
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "step 4 of 8", "step 8 of 8", "all steps done at step 8", "too early to tell", "report", "write with it",
    ]  # fmt: skip
    assert not any(sign in line for line in lines for sign in "\r\x1b")
    assert "tok/s" in lines[0]
    assert "of peak" in lines[0]


def test_a_run_that_fails_leaves_a_report_of_what_it_was(tmp_path):
    made = run(tmp_path / "run", steps=20, save=2)
    take = made.training_step

    def poisoned():
        if made.step == 7:
            made.net.final_norm.weight.data.fill_(math.nan)
        return take()

    made.training_step = poisoned
    with pytest.raises(ch.ClearheadError, match="is nan"):
        train_and_report(made, ProgressDisplay, print, "tiny-decoder", False, None)
    assert json.loads((tmp_path / "run" / "facts.json").read_text())["end"] == "failed"
    assert "ended by a mistake" in (tmp_path / "run" / "report.html").read_text()


def taught(folder, *, microscope=False, preset="tiny-decoder", **changes):
    """What is said by a run on a small text."""
    (folder / "a.txt").write_text("\n".join(sentences(200)))
    common = {
        "data.train": [str(folder / "a.txt")],
        "data.vocab_size": 300,
        "train.max_steps": 4,
        **NARROW,
        **QUICK,
    }
    config = load_config(preset, {**common, **changes})
    said = []
    result = run_training(
        config,
        folder / "run",
        ProgressDisplay,
        said.append,
        recipe=preset,
        device="cpu",
        record_activations=microscope,
    )
    return result, said


def test_a_finished_run_has_nothing_left_to_do_and_says_only_that(tmp_path):
    first, _ = taught(tmp_path)
    left = [
        tmp_path / "run" / name for name in ("log.jsonl", "facts.json", "curve.png", "report.html")
    ]
    before = [path.stat().st_mtime_ns for path in left]
    again, said = taught(tmp_path)
    assert again == first
    assert said == [
        f"nothing is left to do in {tmp_path / 'run'}: all 4 steps are done; a larger train.max_steps goes on."
    ]
    assert [path.stat().st_mtime_ns for path in left] == before
    _, said = taught(tmp_path, **{"train.average_checkpoints": 1})  # something new is asked for
    assert "all steps done at step 4" in " ".join(said)
    assert (tmp_path / "run" / "average").exists()
    assert "going on after step 4" in " ".join(taught(tmp_path, **{"train.max_steps": 6})[1])


def test_a_run_that_was_killed_before_its_report_still_writes_it(tmp_path):
    taught(tmp_path)
    (tmp_path / "run" / "facts.json").unlink()
    (tmp_path / "run" / "report.html").unlink()
    taught(tmp_path)
    assert (tmp_path / "run" / "report.html").exists()


def test_the_report_names_the_film_where_there_is_one(tmp_path):
    _, said = taught(tmp_path)
    page = tmp_path / "run" / "report.html"
    assert "microscope/film.png" not in page.read_text()
    _, said = taught(tmp_path, microscope=True, **{"train.max_steps": 6})
    assert "microscope/film.png" in page.read_text()
    assert sum("film.png" in line for line in said) == 1
    assert len(taught(tmp_path, microscope=True, **{"train.max_steps": 6})[1]) == 1


def test_the_opening_tells_how_many_parameters_learn(tmp_path):
    taught(tmp_path, preset="tiny-encoder")
    changes = {
        "data.train": labelled(tmp_path),
        "train.init_from": str(tmp_path / "run" / "best"),
        "train.trainable": "head",
    }
    config = load_config("finetune-classify", changes)
    made = build_trainer(config, tmp_path / "tuned", resume=True, device="cpu", compile=False)
    learn, size = (
        sum(p.numel() for p in made.net.parameters() if p.requires_grad or all_)
        for all_ in (False, True)
    )
    assert describe_run(made, "cpu")[-1].startswith(f"{learn:,} of {size:,} parameters learn, ")
    assert learn < size


def test_one_step_an_epoch_is_one_step(tmp_path):
    data = Counting()
    made = run(tmp_path / "run", data)
    for epoch, told in ((1, "1 step an epoch"), (2, "2 steps an epoch")):
        data.batches_per_epoch = epoch
        assert told in describe_run(made, "cpu")[-1]


def test_a_number_is_off_by_the_root_of_its_loss(tmp_path, capsys):
    data = {"data.train": labelled(tmp_path), "data.label_column": "score"}
    taught(tmp_path, preset="tiny-encoder", **{"model.head": {"kind": "regression"}}, **data)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    roots = [f"{math.sqrt(line['valid']):.4g}" for line in lines if "valid" in line]
    shown = capsys.readouterr().out
    assert all(f"off by {root}" in shown for root in roots)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "typical error" in page
    assert f"<b>{min(roots, key=float)}</b>" in page


def told_of(preset, **changes):
    config = ch.presets[preset].replace(**changes)
    return _expected_for(config, preset)


def test_a_recipes_range_holds_for_the_recipe_only_and_says_what_it_was_measured_on():
    cpu = ch.presets["shakespeare-char-cpu"].train.expected_loss
    own = (1.0, 2.0, 3.0)
    same = {
        "data__train": ["mine.txt"],
        "train__seed": 3,
        "train__eval_every": 100,
        "vocabulary": 80,
    }
    assert told_of("shakespeare-char-cpu", **same) == (cpu, "tinyshakespeare")
    for other in (
        {"width": 64},
        {"train__batch_size": 8},
        {"train__max_steps": 350},
        {"data__tokenizer": "bpe"},
    ):
        assert told_of("shakespeare-char-cpu", **other)[0] == ()
    assert told_of("shakespeare-char-cpu", width=64, train__expected_loss=own) == (own, "")
    assert all(
        preset in MEASURED_ON for preset, config in ch.presets.items() if config.train.expected_loss
    )


@pytest.mark.parametrize(("low", "high"), [(1.4, 1.6), (1.2, 1.4), (1.7, 2.0)])
def test_what_was_measured_on_other_data_is_no_reproach(low, high):
    (_, found) = diagnose(log(learned), (500, 2.0, 4.0, STEPS, low, high), "tinyshakespeare")
    assert "on tinyshakespeare" in found.message
    assert not found.is_problem
