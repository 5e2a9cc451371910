"""The lectures' claims: each experiment can be begun as it is written, and the page tells what was found."""

import json
import shlex
import shutil
from dataclasses import replace

import pytest

import claims
import clearhead as ch
import tried
from clearhead.cli.common import parse_config_flags
from clearhead.lab.compare import plan_experiment

CPU = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.attention.n_heads": 2,
    "train.batch_size": 2,
    "train.max_steps": 4,
}
OFTEN = {
    "train.log_every": 2,
    "train.eval_every": 2,
    "train.save_every": 4,
    "train.warmup_steps": 1,
    "data.tokenizer": "bytes",
}


def planned(claim):
    """The experiment that a claim's command asks for."""
    _, _, what, *words = claim.command
    known = {"--vary": [], "--seeds": [], "--out": [], "--metric": [""], "--lengths": [""]}
    rest = []
    for option, value in zip(words[::2], words[1::2], strict=True):
        known.get(option, rest).extend([value] if option in known else [option, value])
    lengths = tuple(int(part) for part in known["--lengths"][-1].split(",") if part)
    given = (
        what,
        tuple(known["--vary"]),
        int(known["--seeds"][0]),
        known["--out"][0],
        parse_config_flags(rest),
    )
    return plan_experiment(*given, known["--metric"][-1], "", lengths)


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.name)
def test_every_experiment_can_be_begun_as_it_is_written(claim, monkeypatch):
    monkeypatch.chdir(claims.HERE.parent)
    experiment, out = planned(claim)
    assert out == claims.BUILD / claim.name
    assert len(experiment.seeds) >= 3
    assert len(experiment.variants) >= 2


SMALL = {"quiet": True, "device": "cpu", "model.context_length": 16, **CPU, **OFTEN}
TIED = next(claim for claim in claims.CLAIMS if claim.name == "tied")
VARY = dict(word.split("=") for word in shlex.split(TIED.options) if "=" in word)


@pytest.fixture(scope="module")
def tried_once(tmp_path_factory):
    """One claim tried in seconds; all others not at all."""
    folder = tmp_path_factory.mktemp("claims")
    (folder / "train.txt").write_text("the cat sat on the mat and the old house saw it\n" * 60)
    (folder / "valid.txt").write_text("the old cat saw the house\n" * 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "BUILD", folder / "build")
        patch.setattr(claims, "RESULTS", folder / "results")
        again(folder)
        claims.keep("tied")
    return folder


def again(folder, build="build", **other):
    data = {f"data.{part}": str(folder / f"{part}.txt") for part in ("train", "valid")}
    ch.compare(
        str(claims.HERE / f"{TIED.base}.toml"),
        VARY,
        3,
        folder / build / "tied",
        **{**SMALL, **data, **other},
    )


@pytest.fixture
def results(tried_once):
    return tried_once / "results"


@pytest.fixture
def half(tried_once, tmp_path, monkeypatch):
    """The same experiment, kept when its last run was not yet trained, and gone."""
    monkeypatch.setattr(claims, "BUILD", tried_once / tmp_path.name)
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    shutil.copytree(tried_once / "results" / "tied", tmp_path / "tied")
    lines = (tmp_path / "tied" / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "tied" / "results.jsonl").write_text("".join(lines[:-1]))
    return lines


def test_what_is_kept_has_no_weights_and_tells_the_whole_experiment(results):
    kept = {path.name for path in results.rglob("*") if path.is_file()}
    assert kept == {"experiment.toml", "data.json", "results.jsonl", "log.jsonl"}


def test_what_was_kept_is_gone_on_with(half, tried_once, tmp_path):
    claims.take_up("tied")
    again(tried_once, tmp_path.name)
    now = (claims.BUILD / "tied" / "results.jsonl").read_text().splitlines(keepends=True)
    assert now[:-1] == half[:-1]  # not trained anew: their times are the same
    assert [json.loads(lines[-1])["variant"] for lines in (now, half)] == ["tied=false"] * 2
    assert len([*(claims.BUILD / "tied").rglob("model.safetensors")]) == 1
    claims.keep("tied")
    assert (tmp_path / "tied" / "results.jsonl").read_text() == "".join(now)


def test_what_was_kept_is_not_gone_on_with_otherwise(half, tried_once, tmp_path):
    claims.take_up("tied")
    with pytest.raises(ch.ClearheadError, match=r"train\.steps = 4, not 8"):
        again(tried_once, tmp_path.name, **{"train.max_steps": 8})


def test_what_is_complete_is_tried_from_the_beginning(results, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BUILD", tmp_path)
    monkeypatch.setattr(claims, "RESULTS", results)
    claims.take_up("tied")
    assert not (tmp_path / "tied").exists()


def test_less_than_is_known_is_not_kept(half, tried_once, tmp_path, monkeypatch):
    claims.take_up("tied")
    monkeypatch.setattr(claims, "RESULTS", tried_once / "results")
    with pytest.raises(SystemExit, match=r"holds runs that .* has not"):
        claims.keep("tied")


def test_what_has_found_nothing_is_not_kept_and_what_diverged_at_once_is(half, tmp_path):
    claims.take_up("tied")
    there = claims.BUILD / "tied"
    lines = [
        json.loads(line) | {"end": "diverged"}
        for line in (there / "results.jsonl").read_text().splitlines()
    ]
    shutil.rmtree(there / "runs")
    shutil.rmtree(tmp_path / "tied")
    (there / "results.jsonl").write_text("")
    claims.keep("tied")
    assert not (tmp_path / "tied").exists()
    (there / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    claims.keep("tied")
    assert (tmp_path / "tied" / "results.jsonl").read_text() == (
        there / "results.jsonl"
    ).read_text()


def test_an_interrupted_experiment_keeps_what_it_found(half, monkeypatch, capsys):
    class Child:
        """Is told of the Ctrl-C too, and comes to its own end."""

        def __init__(self, words):
            self.words = words
            self.waited = 0

        def __enter__(self):
            return self

        def __exit__(self, *why):
            assert self.waited == 2

        def wait(self):
            self.waited += 1
            if self.waited == 1:
                raise KeyboardInterrupt
            return 130

    kept = []
    monkeypatch.setattr(claims.subprocess, "Popen", Child)
    monkeypatch.setattr(claims, "keep", kept.append)
    with pytest.raises(SystemExit, match="130"):
        claims.main(["tied", "--processes", "2"])
    assert kept == ["tied"]
    with pytest.raises(SystemExit, match="130"):
        claims.main(["tied", "--", "--train.max_steps", "100"])
    assert kept == ["tied"]
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .endswith(f"{claims.BUILD}/trial-tied --train.max_steps 100")
    )


def test_the_page_tells_what_was_found_and_what_was_not_tried(results, monkeypatch):
    page = tried.page(results)
    summary = tried.read(results / "tied")
    assert f"| tied=true | {summary.rows[0].mean:.4f} ± " in page
    assert page.count("Not tried yet.") == len(claims.CLAIMS) - 1
    assert "tied-steps" in page  # a picture
    assert f"{tried.read(results / 'tied').experiment.provenance.torch_version}." in page


def test_a_claim_that_was_read_says_so_in_the_overview(results, monkeypatch):
    read = [
        replace(claim, found="It held.") if claim.name == "tied" else claim
        for claim in claims.CLAIMS
    ]
    monkeypatch.setattr(tried, "CLAIMS", read)
    assert "| It held. |" in tried.page(results)
