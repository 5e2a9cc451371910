"""Experiments on claims of the lectures: plans, stored results, and the page."""

import json
import shlex
import shutil
from dataclasses import replace

import pytest

import claims
import clearhead as ch
import render_page
from clearhead.cli.common import parse_config_flags
from clearhead.lab.compare import plan_experiment

TIED = next(claim for claim in claims.CLAIMS if claim.name == "tied")
VARY = dict(word.split("=") for word in shlex.split(TIED.options) if "=" in word)
MODEL = {"d_model": 16, "n_layers": 1, "attention.n_heads": 2, "context_length": 16}
TRAIN = {
    "batch_size": 2,
    "max_steps": 4,
    "log_every": 2,
    "eval_every": 2,
    "save_every": 4,
    "warmup_steps": 1,
}


def plan(claim):
    """The experiment of a claim's command, and its folder."""
    _, _, recipe, *words = claim.command
    known = {"--vary": [], "--seeds": [], "--output": [], "--metric": [""], "--eval-lengths": [""]}
    flags = []
    for option, value in zip(words[::2], words[1::2], strict=True):
        known.get(option, flags).extend([value] if option in known else [option, value])
    return plan_experiment(
        recipe,
        tuple(known["--vary"]),
        int(known["--seeds"][0]),
        known["--output"][0],
        parse_config_flags(flags),
        metric=known["--metric"][-1],
        eval_lengths=tuple(int(part) for part in known["--eval-lengths"][-1].split(",") if part),
    )


def test_experiment_is_valid(monkeypatch, subtests):
    for claim in claims.CLAIMS:
        with subtests.test(claim.name):
            monkeypatch.chdir(claims.HERE.parent)
            experiment, output = plan(claim)
            assert output == claims.BUILD / claim.name
            assert len(experiment.seeds) >= 3
            assert len(experiment.variants) >= 2


def test_stored_results_are_complete(subtests):
    for claim in claims.CLAIMS:
        with subtests.test(claim.name):
            summary = render_page.read_summary(claims.RESULTS / claim.name)
            runs = {run.key for run in summary.experiment.runs}
            assert {run.key for run in summary.results} == runs
            assert all((claims.RESULTS / claim.name / run.path).is_dir() for run in summary.results)


@pytest.fixture(scope="module")
def small_experiment(tmp_path_factory):
    """A folder with one claim, tested in seconds, and its stored results."""
    folder = tmp_path_factory.mktemp("claims")
    (folder / "train.txt").write_text("the cat sat on the mat and the old house saw it\n" * 60)
    (folder / "valid.txt").write_text("the old cat saw the house\n" * 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "BUILD", folder / "build")
        patch.setattr(claims, "RESULTS", folder / "results")
        run_experiment(folder)
        claims.store_results("tied")
    return folder


def run_experiment(folder, build="build", **train):
    data = {part: str(folder / f"{part}.txt") for part in ("train", "valid")}
    ch.compare(
        str(claims.HERE / f"{TIED.base}.toml"),
        VARY,
        3,
        folder / build / "tied",
        model=MODEL,
        data={**data, "tokenizer": "bytes"},
        train={**TRAIN, **train},
        device="cpu",
        quiet=True,
    )


@pytest.fixture
def results(small_experiment):
    return small_experiment / "results"


@pytest.fixture
def complete_lines(small_experiment, tmp_path, monkeypatch):
    """Stored results without the last run, and no build folder. Returns the complete results."""
    monkeypatch.setattr(claims, "BUILD", small_experiment / tmp_path.name)
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    shutil.copytree(small_experiment / "results" / "tied", tmp_path / "tied")
    file = tmp_path / "tied" / "results.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    return lines


def test_stored_results_have_no_weights(results):
    names = {path.name for path in results.rglob("*") if path.is_file()}
    assert names == {
        "experiment.toml",
        "data_fingerprints.json",
        "results.jsonl",
        "log.jsonl",
    }


def test_incomplete_experiment_is_resumed(complete_lines, small_experiment, tmp_path):
    claims.restore_results("tied")
    run_experiment(small_experiment, tmp_path.name)
    file = claims.BUILD / "tied" / "results.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert lines[:-1] == complete_lines[:-1]  # also the times: not trained again
    for last in (lines[-1], complete_lines[-1]):
        assert json.loads(last)["variant"] == "tie_embeddings=false"
    assert len([*(claims.BUILD / "tied").rglob("model.safetensors")]) == 1
    claims.store_results("tied")
    assert (tmp_path / "tied" / "results.jsonl").read_text() == "".join(lines)


def test_experiment_is_not_resumed_with_other_options(complete_lines, small_experiment, tmp_path):
    claims.restore_results("tied")
    with pytest.raises(ch.ClearheadError, match=r"train\.max_steps"):
        run_experiment(small_experiment, tmp_path.name, max_steps=8)


def test_complete_experiment_is_not_restored(results, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BUILD", tmp_path)
    monkeypatch.setattr(claims, "RESULTS", results)
    claims.restore_results("tied")
    assert not (tmp_path / "tied").exists()


def test_fewer_results_do_not_replace_more(complete_lines, results, monkeypatch):
    claims.restore_results("tied")
    monkeypatch.setattr(claims, "RESULTS", results)
    with pytest.raises(SystemExit, match="does not have"):
        claims.store_results("tied")


def test_diverged_runs_are_stored_and_an_empty_experiment_is_not(complete_lines, tmp_path):
    claims.restore_results("tied")
    folder = claims.BUILD / "tied"
    file = folder / "results.jsonl"
    runs = [json.loads(line) | {"status": "diverged"} for line in file.read_text().splitlines()]
    shutil.rmtree(folder / "runs")
    shutil.rmtree(tmp_path / "tied")
    file.write_text("")
    claims.store_results("tied")
    assert not (tmp_path / "tied").exists()
    file.write_text("".join(json.dumps(run) + "\n" for run in runs))
    claims.store_results("tied")
    assert (tmp_path / "tied" / "results.jsonl").read_text() == file.read_text()


class InterruptedProcess:
    """The first wait is interrupted by Ctrl-C; the process then exits by itself."""

    def __init__(self, command):
        self.num_waits = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        assert self.num_waits == 2

    def wait(self):
        self.num_waits += 1
        if self.num_waits == 1:
            raise KeyboardInterrupt
        return 130


def test_interrupted_experiment_is_stored_and_a_trial_is_not(complete_lines, monkeypatch, capsys):
    stored = []
    monkeypatch.setattr(claims.subprocess, "Popen", InterruptedProcess)
    monkeypatch.setattr(claims, "store_results", stored.append)
    with pytest.raises(SystemExit, match="130"):
        claims.main(["tied", "--processes", "2"])
    assert stored == ["tied"]
    with pytest.raises(SystemExit, match="130"):
        claims.main(["tied", "--", "--train.max_steps", "100"])
    assert stored == ["tied"]
    command = capsys.readouterr().out.splitlines()[-1]
    assert command.endswith(f"{claims.BUILD}/trial-tied --train.max_steps 100")


def test_page_shows_results_and_untested_claims(results):
    page = render_page.render_page(results)
    summary = render_page.read_summary(results / "tied")
    assert f"| tie_embeddings=true | {summary.rows[0].mean:.4f} ± " in page
    assert page.count("Not tested yet.") == len(claims.CLAIMS) - 1
    assert "tied-steps" in page  # a plot
    assert f"torch {summary.experiment.provenance.torch_version}." in page


def test_published_results_stand_beside_ours():
    page = render_page.render_page(figures=False)
    summary = render_page.read_summary(claims.RESULTS / "roformer-sst-2")
    learned, rotary = (100 * row.mean for row in summary.rows)
    row = next(line for line in page.splitlines() if line.startswith("| SST-2 |"))
    assert row.startswith(f"| SST-2 | accuracy | 93.5 | 90.7 | {learned:.1f} ± ")
    assert f" | {rotary:.1f} ± " in row
    for task in ("QNLI", "QQP", "MNLI"):
        row = next(line for line in page.splitlines() if line.startswith(f"| {task} |"))
        assert row.endswith("| data not at hand | data not at hand |")


def test_overview_shows_conclusions(results, monkeypatch):
    concluded = [
        replace(claim, conclusion="It held.") if claim.name == "tied" else claim
        for claim in claims.CLAIMS
    ]
    monkeypatch.setattr(render_page, "CLAIMS", concluded)
    assert "| It held. |" in render_page.render_page(results)
