"""The lectures' claims: each experiment can be begun as it is written, and the page tells what was found."""

import shlex
from dataclasses import replace

import pytest

import claims
import clearhead as ch
import tried
from clearhead.cli.flags import dotted
from clearhead.lab.compare import plan

CPU = {"model.width": 16, "model.layers": 1, "model.attention.heads": 2, "train.rows": 2, "train.steps": 4}
OFTEN = {"train.report": 2, "train.check": 2, "train.save": 4, "train.warmup": 1, "data.tokenizer": "bytes"}


def planned(claim):
    """The experiment that a claim's command asks for."""
    _, _, what, *words = claim.command
    known = {"--vary": [], "--seeds": [], "--out": [], "--metric": [""], "--lengths": [""]}
    rest = []
    for option, value in zip(words[::2], words[1::2], strict=True):
        known.get(option, rest).extend([value] if option in known else [option, value])
    lengths = tuple(int(part) for part in known["--lengths"][-1].split(",") if part)
    given = (what, tuple(known["--vary"]), int(known["--seeds"][0]), known["--out"][0], dotted(rest))
    return plan(*given, known["--metric"][-1], "", lengths)


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.name)
def test_every_experiment_can_be_begun_as_it_is_written(claim, monkeypatch):
    monkeypatch.chdir(claims.HERE.parent)
    experiment, out = planned(claim)
    assert out == claims.BUILD / claim.name
    assert len(experiment.seeds) >= 3
    assert len(experiment.variants) >= 2


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One claim tried in seconds; all others not at all."""
    folder, claim = tmp_path_factory.mktemp("claims"), next(c for c in claims.CLAIMS if c.name == "tied")
    data = {f"data.{part}": str(folder / f"{part}.txt") for part in ("train", "valid")}
    (folder / "train.txt").write_text("the cat sat on the mat and the old house saw it\n" * 60)
    (folder / "valid.txt").write_text("the old cat saw the house\n" * 6)
    base = str(claims.HERE / f"{claim.base}.toml")
    vary = dict(word.split("=") for word in shlex.split(claim.options) if "=" in word)
    options = {"quiet": True, "device": "cpu", "model.context": 16, **CPU, **OFTEN, **data}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "BUILD", folder / "build")
        patch.setattr(claims, "RESULTS", folder / "results")
        ch.compare(base, vary, 3, folder / "build" / claim.name, **options)
        claims.keep(claim.name)
    return folder / "results"


def test_what_is_kept_has_no_weights_and_tells_the_whole_experiment(results):
    kept = {path.name for path in results.rglob("*") if path.is_file()}
    assert kept == {"experiment.toml", "results.jsonl", "log.jsonl"}


def test_what_was_kept_is_gone_on_with(results, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BUILD", tmp_path)
    monkeypatch.setattr(claims, "RESULTS", results)
    claims.take_up("tied")
    known = (tmp_path / "tied" / "results.jsonl").read_text().splitlines()
    (tmp_path / "tied" / "results.jsonl").write_text("".join(line + "\n" for line in known[:-1]))
    ch.compare(tmp_path / "tied", quiet=True, device="cpu")
    again = (tmp_path / "tied" / "results.jsonl").read_text().splitlines()
    assert again[:-1] == known[:-1]  # not trained anew: their times are the same
    assert len(again) == len(known)
    assert again != known


def test_the_page_tells_what_was_found_and_what_was_not_tried(results, monkeypatch):
    page = tried.page(results)
    summary = tried.read(results / "tied")
    assert f"| tied=true | {summary.rows[0].mean:.4f} ± " in page
    assert page.count("Not tried yet.") == len(claims.CLAIMS) - 1
    assert "tied-steps" in page  # a picture
    assert f"{tried.read(results / 'tied').experiment.made.torch}." in page


def test_a_claim_that_was_read_says_so_in_the_overview(results, monkeypatch):
    read = [replace(claim, found="It held.") if claim.name == "tied" else claim for claim in claims.CLAIMS]
    monkeypatch.setattr(tried, "CLAIMS", read)
    assert "| It held. |" in tried.page(results)
