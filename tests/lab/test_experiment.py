"""Experiments: trained as by `train`, resumed, repeated, and refused if they are another one."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from tiny_experiments import OPTIONS, POSITIONS, compare, sections, write_text

import clearhead as ch
from clearhead.config.model import Config
from clearhead.lab import runner
from clearhead.lab.experiment import EVALUATION_METRICS, Experiment, read_results
from clearhead.lab.plots import plot_by_step
from clearhead.lab.runner import DeviceAssignment
from clearhead.lab.stats import summarize
from clearhead.train import report, trainer

GRAD_CLIP = {"train.grad_clip": [0.1, 1.0]}


def read_summary(output):
    return summarize(Experiment.read(output / "experiment.toml"), read_results(output))


def resume(experiment, **arguments):
    return ch.compare(experiment, quiet=True, device="cpu", **arguments)


def means(comparison):
    return [row["mean"] for row in comparison.table()]


@pytest.fixture(scope="module", autouse=True)
def _without_plots_of_single_runs():
    """They are tested elsewhere, and take most of the time of runs this short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "plot_loss", lambda *arguments: None)
        patch.setattr(report, "to_png", lambda figure: b"")
        patch.setattr(report, "to_svg", lambda figure, prefix: "")
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Three positions, three seeds, two lengths."""
    output = tmp_path_factory.mktemp("lab") / "positions"
    return compare(output, data, eval_lengths=[16, 32])


# ---- results


@pytest.mark.slow
def test_every_variant_is_trained_with_every_seed_as_by_train(trained, data, tmp_path):
    results = read_results(trained.output)
    positions = ("learned", "none", "rotary")
    assert sorted(results) == [(f"position={p}", seed) for p in positions for seed in range(3)]
    options = {**OPTIONS, "data.train": data, "model.position": "rotary", "train.seed": 2}
    single = tmp_path / "single"
    ch.train("lm-small", single, quiet=True, device="cpu", **sections(options))
    logs = []
    for folder in (single, trained.output / "runs/position=rotary/2"):
        lines = (folder / "log.jsonl").read_text().splitlines()
        logs.append([json.loads(line) for line in lines])
    losses = [[(line["step"], line["loss"]) for line in log] for log in logs]
    assert losses[0] == losses[1]
    best_loss = min(line["valid_loss"] for line in logs[0])
    assert results["position=rotary", 2].best_loss == best_loss


@pytest.mark.slow
def test_table_summarizes_the_runs(trained):
    rows = {row["variant"]: row for row in trained.table()}
    results = read_results(trained.output)
    losses = {name: [results[name, seed].best_loss for seed in range(3)] for name in rows}
    for name, row in rows.items():
        assert row["mean"] == pytest.approx(sum(losses[name]) / 3)
        assert (row["min"], row["max"], row["n"]) == (min(losses[name]), max(losses[name]), 3)
        assert row["train_seconds"] > 0
        model = ch.load(trained.output / f"runs/{name}/0", device="cpu")
        assert row["num_parameters"] == model.config.num_parameters()
    pairs = zip(losses["position=rotary"], losses["position=none"], strict=True)
    mean_difference = sum(rotary - none for rotary, none in pairs) / 3
    assert rows["position=rotary"]["mean_difference"] == pytest.approx(mean_difference)
    assert rows["position=none"]["p_value"] is None
    with (trained.output / "table.csv").open() as file:
        assert [row["variant"] for row in csv.DictReader(file)] == list(rows)


@pytest.mark.slow
def test_loss_by_length_beyond_the_context(trained):
    results = read_results(trained.output)
    for (name, seed), run in results.items():
        at_16 = run.loss_by_length["16"]
        assert at_16["loss"] == pytest.approx(run.best_loss, rel=1e-5), (name, seed)
        assert at_16["extrapolated_fraction"] == 0
        assert bool(run.loss_by_length["32"]) is (name != "position=learned")
    at_32 = results["position=rotary", 0].loss_by_length["32"]
    assert at_32["extrapolated_fraction"] == pytest.approx(0.5, abs=0.03)
    assert "learned positions end with the context" in (trained.output / "report.md").read_text()


def test_runs_too_short_to_judge_are_pointed_out(data, tmp_path):
    options = {"train.max_steps": 4, "train.eval_every": 4, "train.warmup_steps": 9}
    output = tmp_path / "lab"
    text = str(compare(output, data, GRAD_CLIP, 1, options))
    assert "train.warmup_steps = 9 exceeds train.max_steps = 4" in text
    assert "2 of 2 runs were validated only once" in text
    line, *_ = plot_by_step(read_summary(output), output, (4, 3)).axes[0].lines
    assert line.get_marker() == "o"


@pytest.mark.slow
def test_diverged_run_is_a_result(data, tmp_path):
    optimizers = [{"kind": "adamw", "lr": lr} for lr in (1e-3, 1e30)]
    vary = {"train.optimizer": optimizers}
    comparison = compare(tmp_path / "lab", data, vary, 1, {"train.grad_clip": 0.0})
    good, bad = comparison.table()
    assert (good["n"], good["num_diverged"], bad["n"], bad["num_diverged"]) == (1, 0, 0, 1)
    assert "1 of 1 runs of optimizer=adamw,lr=1e+30 diverged" in str(comparison)
    assert resume(tmp_path / "lab").table() == comparison.table()


@pytest.mark.slow
def test_metric_of_evaluation_equals_evaluate(data, tmp_path):
    valid = tmp_path / "valid.txt"
    valid.write_text("the old cat sat on the mat and saw a house\n" * 4)
    options = {"data.valid": str(valid)}
    comparison = compare(tmp_path / "lab", data, {}, 1, options, metric="bits_per_byte")
    model = ch.load(tmp_path / "lab/runs/base/0", device="cpu")
    expected = ch.evaluate(model, valid).value("bits_per_byte")
    assert means(comparison) == [pytest.approx(expected)]
    assert "bits per byte" in str(comparison)


@pytest.mark.slow
def test_runs_are_fine_tuned_from_the_model_of_their_seed(data, tmp_path):
    first = compare(tmp_path / "first", data, {}, 2).output
    options = {name: value for name, value in OPTIONS.items() if name.startswith("train.")}
    options |= {"data.train": data, "train.init_from": f"{first}/runs/base/{{seed}}"}
    output = tmp_path / "second"
    ch.compare("lm-small", {}, 2, output, quiet=True, device="cpu", **sections(options))
    for seed in (0, 1):
        config = Config.read(output / f"runs/base/{seed}/run.json")
        assert config.train.init_from == f"{first}/runs/base/{seed}"


@pytest.mark.slow
def test_printed_size_is_that_of_the_runs(data, tmp_path, capsys):
    options = sections({**OPTIONS, "data.train": data})
    ch.compare("lm-small", POSITIONS, 1, tmp_path / "lab", device="cpu", **options)
    pattern = r"([\d,]+) parameters, and ([\d,]+) per token of the vocabulary"
    printed = re.findall(pattern, capsys.readouterr().out)
    vocab_size = Config.read(next((tmp_path / "lab").rglob("run.json"))).model.vocab_size
    sizes = [
        int(base.replace(",", "")) + vocab_size * int(per_token.replace(",", ""))
        for base, per_token in printed
    ]
    results = read_results(tmp_path / "lab").values()
    assert sizes == [run.num_parameters for run in results]


def test_peak_memory_is_optional(monkeypatch):
    def refuse(*arguments):
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    DeviceAssignment("cpu", 1).reset()


# ---- resuming and repeating


@pytest.mark.slow
def test_finished_experiment_is_not_trained_again(trained, monkeypatch):
    monkeypatch.setattr(runner, "run_training", None)
    file = trained.output / "experiment.toml"
    file.write_text(f"# mine\n{file.read_text()}")
    assert resume(trained.output).table() == trained.table()
    assert file.read_text().startswith("# mine")  # unchanged


@pytest.mark.slow
def test_other_metrics_are_analyzed_without_training(trained, data, monkeypatch, tmp_path):
    output = shutil.copytree(trained.output, tmp_path / "copy", symlinks=True)
    monkeypatch.setattr(runner, "run_training", None)
    comparison = resume(output, eval_lengths=[8], baseline="position=rotary")
    assert all("8" in run.loss_by_length for run in read_results(output).values())
    has_difference = [row["mean_difference"] is not None for row in comparison.table()]
    assert has_difference == [True, True, False]
    caveat = "these runs were compared before: best_loss against position=none"
    assert caveat in str(comparison)
    assert caveat in str(resume(output))
    assert "compared before" not in str(trained)


@pytest.mark.slow
def test_lost_run_is_trained_again_with_the_same_result(trained, tmp_path):
    output = shutil.copytree(trained.output, tmp_path / "copy", symlinks=True)
    lines = (output / "results.jsonl").read_text().splitlines(keepends=True)
    half_line = lines[0][:40]
    (output / "results.jsonl").write_text("".join(lines[1:]) + half_line)
    shutil.rmtree(output / "runs/position=none/0")
    assert means(resume(output)) == means(trained)


@pytest.mark.slow
def test_experiment_is_repeated_from_its_file(data, tmp_path):
    first = compare(tmp_path / "first", data, GRAD_CLIP, [7])
    second = resume(first.output / "experiment.toml", output=tmp_path / "second")
    assert means(second) == means(first)
    experiments = [Experiment.read(each.output / "experiment.toml") for each in (first, second)]
    assert experiments[0] == experiments[1]


@pytest.mark.slow
def test_relative_data_paths_must_exist_when_repeating(data, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(data).parent)
    first = compare(tmp_path / "first", Path(data).name, GRAD_CLIP, [7])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ch.ClearheadError, match="does not exist here"):
        resume(first.output / "experiment.toml", output=tmp_path / "second")


# ---- refusals


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"seeds": 4}, "seeds = [0, 1, 2], got [0, 1, 2, 3]"),
        ({"vary": {"model.position": ["none"]}}, "vary = "),
        ({"options": {"train.max_steps": 7}}, "train.max_steps = 6, got 7"),
    ],
)
@pytest.mark.slow
def test_other_experiment_in_the_same_folder_is_refused(changes, keyword, trained, data):
    with pytest.raises(ch.ClearheadError) as error:
        compare(trained.output, data, **changes)
    assert keyword in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"data": {"valid": "x"}}, "--data.valid"),
        ({"seeds": 4}, "--seeds"),
        ({"vary": POSITIONS}, "--vary"),
    ],
)
@pytest.mark.slow
def test_existing_experiment_cannot_be_changed(arguments, option, trained):
    with pytest.raises(ch.ClearheadError, match=option):
        ch.compare(trained.output, **arguments)


def test_folder_without_experiment_is_refused(tmp_path):
    with pytest.raises(ch.ClearheadError, match=r"experiment.toml"):
        ch.compare(tmp_path)


@pytest.mark.parametrize(
    ("name", "keyword"), [("lm-smal", "did you mean 'lm-small'"), ("nowhere", "neither a preset")]
)
def test_unknown_recipe_is_refused(name, keyword):
    with pytest.raises(ch.ClearheadError, match=keyword):
        ch.compare(name)


def test_preset_takes_precedence_over_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lm-small").mkdir()
    with pytest.raises(ch.ClearheadError, match="no training data"):
        ch.compare("lm-small")


def test_changed_data_is_refused(tmp_path):
    data = write_text(tmp_path)
    compare(tmp_path / "lab", data, {}, 1)
    with Path(data).open("a") as file:
        file.write(" more")
    with pytest.raises(ch.ClearheadError, match="has changed"):
        resume(tmp_path / "lab")


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"seeds": [1, 1]}, "--seeds"),
        ({"seeds": 0}, "--seeds"),
        ({"seeds": 10**20}, "from 1 to 1,000"),
        ({"seeds": 2.5}, "--seeds"),
        ({"seeds": [10**20]}, "from 0 to 2^63 - 1"),
        ({"seeds": []}, "--seeds"),
        ({"seeds": "12"}, "integers"),
        ({"baseline": "rotary"}, "--baseline rotary"),
        ({"metric": "blue"}, "unknown --metric blue; available: best_loss, final_loss"),
        ({"metric": "perplexity"}, "--data.valid"),
        ({"options": {"data.train": []}}, "no training data"),
        ({"options": {"data.train": "-"}}, "standard input"),
        ({"options": {"data.valid_fraction": 0.0}}, "needs validation data"),
        ({"options": {"data.train": "nowhere.txt"}}, "nowhere.txt"),
        ({"options": {"data.valid": "nowhere*"}}, "nowhere*"),
        ({"eval_lengths": [0]}, "--eval-lengths must be a positive integer"),
    ],
)
def test_invalid_input_is_refused_before_any_run(data, tmp_path, changes, keyword):
    with pytest.raises(ch.ClearheadError) as error:
        compare(tmp_path / "lab", data, **changes)
    assert keyword in str(error.value)
    assert not list(tmp_path.rglob("run.json"))


def test_f1_of_three_classes_is_refused_before_training(tmp_path, monkeypatch):
    for name, animal in (("train", "cat"), ("valid", "dog")):
        rows = "".join(f"the {animal} {n},{'abc'[n % 3]}\n" for n in range(30))
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    monkeypatch.setattr(trainer.Trainer, "train", None)
    with pytest.raises(ch.ClearheadError, match=r"two classes.*3.*macro_f1"):
        ch.compare(
            "finetune-classify",
            None,
            1,
            tmp_path / "lab",
            metric="f1",
            quiet=True,
            device="cpu",
            model={"d_model": 16, "n_layers": 1, "attention.n_heads": 2},
            data={
                "train": str(tmp_path / "train.csv"),
                "valid": str(tmp_path / "valid.csv"),
                "tokenizer": "bytes",
            },
            train={"init_from": ""},
        )


def test_folder_with_other_files_is_refused(data, tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ch.ClearheadError, match="contains other files"):
        compare(tmp_path, data)


def test_folder_inside_the_data_is_refused(tmp_path):
    write_text(tmp_path)
    with pytest.raises(ch.ClearheadError, match="inside the data folder"):
        compare(tmp_path / "lab", str(tmp_path))
    assert not (tmp_path / "lab").exists()


def test_metrics_are_those_of_evaluate():
    from clearhead.evaluate import classification, language

    for task, descriptions in (
        ("lm", language.LANGUAGE_MODEL_METRICS),
        ("mlm", language.MASKED_LM_METRICS),
        ("regression", classification.REGRESSION_METRICS),
    ):
        assert {*EVALUATION_METRICS[task]} == {*descriptions} - {"loss"}
