"""An experiment is a folder: it goes on where it was, repeats itself, and is never another than it began as."""

import csv
import json
import re
import shutil
from pathlib import Path

import experiments
import pytest
from experiments import POSITIONS, SMALL

import clearhead as ch
from clearhead.config.model import Config
from clearhead.config.parse import read_config_file
from clearhead.lab import runner
from clearhead.lab.experiment import EVALUATION_METRICS, Experiment, read_results
from clearhead.lab.report import plot_by_step
from clearhead.lab.runner import DeviceAssignment
from clearhead.lab.stats import summarize
from clearhead.train import report
from clearhead.train.trainer import Trainer


def compared(out, data, vary=POSITIONS, seeds=3, **changes):
    return ch.compare(
        "lm-small",
        vary,
        seeds,
        out,
        quiet=True,
        device="cpu",
        **{**SMALL, "data.train": data, **changes},
    )


def read(out):
    return summarize(Experiment.read(out / "experiment.toml"), read_results(out))


@pytest.fixture(scope="module", autouse=True)
def no_pictures_of_single_runs():
    """They have tests of their own, and take most of the time of runs as short as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "figure", lambda *_: None)
        patch.setattr(report, "png", lambda drawn: b"")
        patch.setattr(report, "svg", lambda drawn, name: "")
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return experiments.text(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Three positions, three seeds, two lengths."""
    out = tmp_path_factory.mktemp("lab") / "positions"
    return compared(out, data, lengths=[16, 32])


def test_every_variant_is_trained_with_every_seed_as_if_by_train(whole, data, tmp_path):
    assert sorted(read_results(whole.out)) == [
        (f"position={p}", s) for p in ("learned", "none", "rotary") for s in range(3)
    ]
    alone = tmp_path / "alone"
    options = {**SMALL, "data.train": data, "model.position": "rotary", "train.seed": 2}
    ch.train("lm-small", alone, quiet=True, device="cpu", **options)
    theirs = [json.loads(line) for line in (alone / "log.jsonl").read_text().splitlines()]
    ours = [
        json.loads(line)
        for line in (whole.out / "runs/position=rotary/2/log.jsonl").read_text().splitlines()
    ]
    assert [(line["step"], line["loss"]) for line in ours] == [
        (line["step"], line["loss"]) for line in theirs
    ]
    assert read_results(whole.out)["position=rotary", 2].best_loss == min(
        line["valid"] for line in theirs
    )


def test_the_table_says_what_the_runs_say(whole):
    rows = {row["variant"]: row for row in whole.table()}
    known = read_results(whole.out)
    losses = {name: [known[name, seed].best_loss for seed in range(3)] for name in rows}
    for name, row in rows.items():
        assert row["mean"] == pytest.approx(sum(losses[name]) / 3)
        assert (row["lowest"], row["highest"], row["n"]) == (
            min(losses[name]),
            max(losses[name]),
            3,
        )
        assert row["seconds"] > 0
        assert (
            row["parameters"]
            == ch.load(whole.out / f"runs/{name}/0", device="cpu").config.num_parameters()
        )
    pairs = [a - b for a, b in zip(losses["position=rotary"], losses["position=none"], strict=True)]
    assert rows["position=rotary"]["difference"] == pytest.approx(sum(pairs) / 3)
    assert rows["position=none"]["p"] is None
    with (whole.out / "table.csv").open() as file:
        assert [row["variant"] for row in csv.DictReader(file)] == list(rows)


def test_longer_texts_are_read_where_positions_allow_it(whole):
    known = read_results(whole.out)
    for (name, seed), run in known.items():
        assert run.loss_by_length["16"]["loss"] == pytest.approx(run.best_loss, rel=1e-5), (
            name,
            seed,
        )
        assert run.loss_by_length["16"]["beyond"] == 0
        assert bool(run.loss_by_length["32"]) is (name != "position=learned")
    assert known["position=rotary", 0].loss_by_length["32"]["beyond"] == pytest.approx(
        0.5, abs=0.03
    )
    assert "learned positions end with the context" in (whole.out / "report.md").read_text()


def test_what_is_done_is_not_done_again(whole, monkeypatch):
    monkeypatch.setattr(runner, "teach", None)
    file = whole.out / "experiment.toml"
    file.write_text(f"# mine\n{file.read_text()}")
    again = ch.compare(whole.out, quiet=True)
    assert again.table() == whole.table()
    assert file.read_text().startswith("# mine")  # it is as it was


def test_runs_too_short_to_judge_are_told(data, tmp_path):
    short = {"train.max_steps": 4, "train.eval_every": 4, "train.warmup_steps": 9}
    found = str(compared(tmp_path / "lab", data, {"train.grad_clip": [0.1, 1.0]}, 1, **short))
    assert "train.warmup_steps takes 9 steps of 4" in found
    assert "2 of 2 runs were validated once" in found
    (line, *_) = plot_by_step(read(tmp_path / "lab"), tmp_path / "lab", (4, 3)).axes[0].lines
    assert line.get_marker() == "o"


def test_what_is_asked_later_is_measured_without_training(whole, data, monkeypatch, tmp_path):
    out = shutil.copytree(whole.out, tmp_path / "copy", symlinks=True)
    monkeypatch.setattr(runner, "teach", None)
    more = ch.compare(out, quiet=True, device="cpu", eval_lengths=[8], baseline="position=rotary")
    assert all("8" in run.loss_by_length for run in read_results(out).values())
    assert [row["difference"] is None for row in more.table()] == [False, False, True]
    asked = "this experiment was asked before: loss against position=none. p is corrected"
    assert asked in str(more)
    assert asked in str(ch.compare(out, quiet=True, device="cpu"))
    assert "asked before" not in str(whole)


def test_a_run_that_is_lost_is_trained_again_and_comes_to_the_same(whole, tmp_path):
    out = shutil.copytree(whole.out, tmp_path / "copy", symlinks=True)
    lines = (out / "results.jsonl").read_text().splitlines(keepends=True)
    (out / "results.jsonl").write_text(
        "".join(lines[1:]) + lines[0][:40]
    )  # of the first, only half a line is left
    shutil.rmtree(out / "runs/position=none/0")
    again = ch.compare(out, quiet=True, device="cpu")
    assert [row["mean"] for row in again.table()] == [row["mean"] for row in whole.table()]


def test_an_experiment_is_repeated_from_its_file(data, tmp_path):
    before = compared(tmp_path / "lab", data, {"train.grad_clip": [0.1, 1.0]}, [7])
    again = ch.compare(
        before.output / "experiment.toml", output=tmp_path / "again", quiet=True, device="cpu"
    )
    assert [row["mean"] for row in again.table()] == [row["mean"] for row in before.table()]
    first, second = (
        Experiment.read(out / "experiment.toml") for out in (before.output, again.output)
    )
    assert first == second


def test_texts_that_are_named_from_another_folder_are_missed(data, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(data).parent)
    before = compared(tmp_path / "lab", Path(data).name, {"train.grad_clip": [0.1, 1.0]}, [7])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ch.ClearheadError, match="names it from the folder in which it was begun"):
        ch.compare(
            before.output / "experiment.toml", output=tmp_path / "again", quiet=True, device="cpu"
        )


def test_another_experiment_in_the_same_folder_is_refused(whole, data):
    for changes, sentence in (
        ({"seeds": 4}, "seeds = [0, 1, 2], not [0, 1, 2, 3]"),
        ({"vary": {"model.position": ["none"]}}, "vary = "),
        (
            {"train.max_steps": 7},
            "train.max_steps = 6, not 7: what is compared must be trained and judged alike; choose another",
        ),
        ({"data.valid": data}, "data.valid = [], not "),
    ):
        with pytest.raises(ch.ClearheadError, match="compares with") as error:
            compared(whole.out, data, **changes)
        assert sentence in str(error.value)


def test_what_is_not_free_to_change_is_named(whole, tmp_path, monkeypatch):
    for options in ({"data__valid": "x"}, {"seeds": 4}, {"vary": POSITIONS}):
        with pytest.raises(
            ch.ClearheadError,
            match=f"leave out --{next(iter(options)).replace('__', '.')}, or begin",
        ):
            ch.compare(whole.out, **options)
    with pytest.raises(ch.ClearheadError, match="holds no experiment; name a preset"):
        ch.compare(tmp_path)
    with pytest.raises(ch.ClearheadError, match="did you mean 'lm-small'"):
        ch.compare("lm-smal")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lm-small").mkdir()  # a folder that is called like a preset takes nothing from it
    with pytest.raises(ch.ClearheadError, match="there is nothing to learn from"):
        ch.compare("lm-small")


def test_data_that_have_changed_are_refused(tmp_path):
    data = experiments.text(tmp_path)
    compared(tmp_path / "lab", data, {}, 1)
    with open(data, "a") as file:  # noqa: PTH123
        file.write(" more")
    with pytest.raises(ch.ClearheadError, match="has changed"):
        ch.compare(tmp_path / "lab", quiet=True)


def test_a_run_that_diverges_is_a_result_and_the_others_go_on(data, tmp_path):
    vary = {"train.optimizer": [{"kind": "adamw", "rate": rate} for rate in (1e-3, 1e30)]}
    done = compared(tmp_path / "lab", data, vary, 1, **{"train.grad_clip": 0.0})
    good, bad = done.table()
    assert (good["n"], good["diverged"], bad["n"], bad["diverged"]) == (1, 0, 0, 1)
    assert "1 of 1 runs of optimiser=adamw,rate=1e+30 diverged" in str(done)
    assert ch.compare(tmp_path / "lab", quiet=True).table() == done.table()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seeds": [1, 1]}, "--seeds 1,1 must"),
        ({"seeds": 0}, "--seeds 0 must"),
        ({"seeds": 10**20}, "from 1 to 1,000"),
        ({"seeds": 2.5}, "--seeds 2.5 must"),
        ({"seeds": [10**20]}, "from 0 to 2^63 - 1"),
        ({"seeds": []}, "different whole numbers"),
        ({"seeds": "12"}, "must be whole numbers"),
        ({"against": "rotary"}, "--against rotary is no variant"),
        (
            {"metric": "blue"},
            "blue is unknown here; known: loss, last, and with --data.valid perplexity, word",
        ),
        ({"metric": "perplexity"}, "give --data.valid"),
        ({"data.train": []}, "nothing to learn from"),
        ({"data.train": "-"}, "standard input"),
        ({"data.valid_fraction": 0.0}, "nothing is held out"),
        ({"data.train": "nowhere.txt"}, "nowhere.txt cannot be read: there is no such file"),
        ({"data.valid": "nowhere*"}, "nowhere* cannot be read: there is no such file"),
        ({"lengths": [0]}, "must be at least 1"),
    ],
)
def test_wrong_input_is_a_sentence_and_leaves_no_run(data, tmp_path, changes, sentence):
    with pytest.raises(ch.ClearheadError) as error:
        compared(tmp_path / "lab", **{"data": data, **changes})
    assert sentence in str(error.value)
    assert not list(tmp_path.rglob("run.json"))


def test_what_is_neither_preset_nor_file_is_told_that_folders_of_experiments_are_taken_too(
    tmp_path,
):
    with pytest.raises(
        ch.ClearheadError,
        match=r"nowhere is no preset .*, no run\.toml, and no folder of an experiment",
    ):
        ch.compare(tmp_path / "nowhere")


def test_the_size_that_is_told_before_is_that_of_the_runs(data, tmp_path, capsys):
    ch.compare(
        "lm-small", POSITIONS, 1, tmp_path / "lab", device="cpu", **{**SMALL, "data.train": data}
    )
    told = re.findall(
        r"([\d,]+) parameters, and ([\d,]+) for each token of its vocabulary",
        capsys.readouterr().out,
    )
    tokens = Config.from_dict(
        read_config_file(next((tmp_path / "lab").rglob("run.json")))
    ).model.vocab_size
    sizes = [int(own.replace(",", "")) + tokens * int(each.replace(",", "")) for own, each in told]
    assert sizes == [run.num_parameters for run in read_results(tmp_path / "lab").values()]


def test_f1_of_three_classes_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    rows = "text,label\n" + "".join(f"the cat {n},{'abc'[n % 3]}\n" for n in range(30))
    for name in ("train.csv", "valid.csv"):
        (tmp_path / name).write_text(rows.replace("cat", "dog" if name == "valid.csv" else "cat"))
    monkeypatch.setattr(Trainer, "train", None)
    with pytest.raises(
        ch.ClearheadError, match="f1 is of two classes, and there are 3; macro f1 is of any"
    ):
        ch.compare(
            "finetune-classify", None, 1, tmp_path / "lab", metric="f1", quiet=True, device="cpu",
            **{"train.init_from": "", "data.train": str(tmp_path / "train.csv"), "data.valid": str(tmp_path / "valid.csv")},
            **{"model.d_model": 16, "model.n_layers": 1, "model.attention.n_heads": 2, "data.tokenizer": "bytes"},
        )  # fmt: skip


def test_a_folder_of_something_else_is_left_alone(data, tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ch.ClearheadError, match="needs a folder of its own"):
        compared(tmp_path, data)


def test_an_experiment_has_no_folder_inside_of_its_data(tmp_path):
    experiments.text(tmp_path)
    with pytest.raises(ch.ClearheadError, match="runs would read what others leave"):
        compared(tmp_path / "lab", str(tmp_path))
    assert not (tmp_path / "lab").exists()


def test_where_the_system_does_not_let_memory_be_counted_it_goes_on(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    DeviceAssignment("cpu", 1).reset()


def test_a_figure_of_evaluate_is_what_evaluate_says(data, tmp_path):
    valid = tmp_path / "valid.txt"
    valid.write_text("the old cat sat on the mat and saw a house\n" * 4)
    options = {"data.valid": str(valid), "metric": "bits_per_byte"}
    done = compared(tmp_path / "lab", data, {}, 1, **options)
    model = ch.load(tmp_path / "lab/runs/base/0", device="cpu")
    assert done.table()[0]["mean"] == pytest.approx(
        ch.evaluate(model, valid).value("bits per byte")
    )
    assert "bits per byte" in str(done)


def test_each_run_may_start_from_the_model_of_its_own_seed(data, tmp_path):
    begun = compared(tmp_path / "first", data, {}, 2).output
    options = {name: value for name, value in SMALL.items() if name.startswith("train.")}
    options |= {"data.train": data, "train.init_from": f"{begun}/runs/base/{{seed}}"}
    done = ch.compare("lm-small", {}, 2, tmp_path / "then", quiet=True, device="cpu", **options)
    for seed in (0, 1):
        assert (
            Config.read(done.output / f"runs/base/{seed}/run.json").train.init_from
            == f"{begun}/runs/base/{seed}"
        )


def test_figures_that_can_be_asked_for_are_those_of_evaluate():
    from clearhead.evaluate import classification, language

    for head, module in (
        ("language", language),
        ("masked-word", language),
        ("number", classification),
    ):
        assert {*EVALUATION_METRICS[head]} == {*module.HOW} - {"loss"}
