"""`clearhead bench` lists and runs the benchmarks of a checkout, with their own options."""

import sys

import pytest
from typer.testing import CliRunner

from clearhead.cli import bench
from clearhead.cli.main import app
from clearhead.errors import ClearheadError

SCRIPT = '''"""Measure speed.

In detail."""
import sys
if __name__ == "__main__":
    print("ran", *sys.argv[1:])
'''


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "speed.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text('"""Not a benchmark."""\nWORD = "helped"\n')
    (tmp_path / "two.py").write_text(f'"""Two."""\nimport helper\n{SCRIPT}    print(helper.WORD)\n')
    (tmp_path / "broken.py").write_text(f'"""Broken."""\nimport no_such_peer\n{SCRIPT}')
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["clearhead"])

    def call(*words):
        result = CliRunner().invoke(app, ["bench", *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return call


def test_bench_lists_all_benchmarks_without_a_name(run):
    assert [line.split(maxsplit=1) for line in run().splitlines()] == [
        ["broken", "Broken."],
        ["speed", "Measure speed."],
        ["two", "Two."],
    ]


def test_bench_passes_on_options(run):
    assert run("speed", "--keep", "--rounds", "3") == "ran --keep --rounds 3\n"
    assert run("two") == "ran\nhelped\n"


@pytest.mark.parametrize(
    ("name", "message"), [("spee", "did you mean 'speed'"), ("broken", "needs no_such_peer")]
)
def test_failing_and_unknown_benchmarks_are_errors(run, name, message):
    with pytest.raises(ClearheadError, match=message):
        run(name)


def test_installed_package_has_no_benchmarks(run, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "FOLDER", tmp_path / "nowhere")
    with pytest.raises(ClearheadError, match="part of the repository"):
        run("speed")


def test_bench_finds_the_benchmarks_of_this_checkout():
    output = CliRunner().invoke(app, ["bench"]).output
    assert {"forward", "train", "decode"} <= {line.split()[0] for line in output.splitlines()}
