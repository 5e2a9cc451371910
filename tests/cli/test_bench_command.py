"""`clearhead bench`: the benchmarks of a checkout are listed and run, with their own options."""

import sys

import pytest
import typer.testing

from clearhead.cli import bench
from clearhead.cli.main import app
from clearhead.errors import ClearheadError

TOLD = '''"""How fast it is.

At great length."""
import sys
if __name__ == "__main__":
    print("ran", *sys.argv[1:])
'''


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "swift.py").write_text(TOLD)
    (tmp_path / "beside.py").write_text('"""Of use to others."""\nWORD = "beside"\n')
    (tmp_path / "pair.py").write_text(f'"""Two."""\nimport beside\n{TOLD}    print(beside.WORD)\n')
    (tmp_path / "lacking.py").write_text(f'"""Lacks."""\nimport no_such_peer\n{TOLD}')
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["clearhead"])

    def call(*words):
        told = typer.testing.CliRunner().invoke(app, ["bench", *words])
        if told.exception is not None and not isinstance(told.exception, SystemExit):
            raise told.exception
        return told.output

    return call


def test_without_a_name_all_are_listed(run):
    assert [line.split(maxsplit=1) for line in run().splitlines()] == [
        ["lacking", "Lacks."],
        ["pair", "Two."],
        ["swift", "How fast it is."],
    ]


def test_what_follows_goes_to_the_benchmark(run):
    assert run("swift", "--keep", "--rounds", "3") == "ran --keep --rounds 3\n"
    assert run("pair") == "ran\nbeside\n"


@pytest.mark.parametrize(
    ("what", "why"),
    [("swif", "did you mean 'swift'"), ("lacking", "needs no_such_peer, which is not installed")],
)
def test_what_cannot_run_is_told_in_a_sentence(run, what, why):
    with pytest.raises(ClearheadError, match=why):
        run(what)


def test_a_package_has_no_benchmarks(run, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "FOLDER", tmp_path / "nowhere")
    with pytest.raises(ClearheadError, match="come with the source"):
        run("swift")


def test_the_benchmarks_of_this_checkout_are_found():
    told = typer.testing.CliRunner().invoke(app, ["bench"]).output
    assert {"forward", "train", "decode"} <= {line.split()[0] for line in told.splitlines()}
