"""Benchmark results are complete, and the page lists every target and run."""

import argparse
import importlib.util
import re
import shlex
import socket
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest

import benchmark_results
import benchmark_tables
import benchmark_targets
from benchmark_results import Row, Run
from benchmark_targets import Target, TargetStatus

ROOT = Path(__file__).parents[2]
FILES = sorted(benchmark_results.RESULTS.glob("*.json"))
LOG = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
SCRIPTS = [
    path
    for path in sorted((ROOT / "bench").glob("*.py"))
    if "argparse" in path.read_text() and path.stem != "benchmark_results"
]


# ---------------------------------------------------------------- results
def test_results_file_is_normalized_and_names_its_runs(subtests):
    for file in FILES:
        with subtests.test(file.name):
            runs = benchmark_results.read_runs(file)
            assert benchmark_results.format_runs(runs) == file.read_text(encoding="utf-8")
            assert len({run.command for run in runs}) == len(runs)
            for run in runs:
                date.fromisoformat(run.date)
                (script,) = re.findall(r"\bbench/\w+\.py\b", run.command)
                assert (ROOT / script).exists()
                assert Path(script).stem == file.stem.split(".")[0]
                assert not any(word.startswith(("/", "~")) for word in shlex.split(run.command))
                assert run.machine
                assert run.rows
                assert run.source or {"python", "torch", "clearhead"} <= run.versions.keys()
                assert len({(row.workload, row.peer) for row in run.rows}) == len(run.rows)


def test_row_has_a_value_within_its_spread_and_a_ratio_to_its_peer(subtests):
    for file in FILES:
        with subtests.test(file.name):
            for row in (row for run in benchmark_results.read_runs(file) for row in run.rows):
                assert row.workload
                assert row.unit
                assert row.ours or row.ratio
                assert bool(row.peer) == bool(row.ratio), row
                for middle, *ends in filter(None, (row.ours, row.theirs, row.ratio)):
                    assert len(ends) in (0, 2)
                    assert ends == sorted(ends)
                    assert middle is None or not ends or ends[0] <= middle <= ends[1], row


def test_results_do_not_contain_the_hostname():
    assert not any(socket.gethostname() in file.read_text(encoding="utf-8") for file in FILES)


def spellings(value):
    """Ways to write a number in the log."""
    plain = {
        f"{value:,g}",
        f"{value:,.0f}" if value >= 1000 else f"{value:g}",
        f"{value:.1f}",
        f"{value:.2f}",
        f"{value:.3f}",
    }
    return plain | {
        f"{value / 1000:g}",
        f"{value / 1000:.1f}",
        f"{value / 100:g}",
        f"{value:g}".removeprefix("0"),
    }


UNITS_NOT_IN_LOG = (
    "streams",
    "requests",
    "rows",
    "matrices",
    "× the first's",
)  # spelled out in words, or computed


def test_values_copied_from_the_log_are_in_the_log(subtests):
    for file in FILES:
        with subtests.test(file.name):
            numbers = set(re.findall(r"\d[\d,]*(?:\.\d+)?", LOG))
            for row in (
                row
                for run in benchmark_results.read_runs(file)
                if run.source
                for row in run.rows
                if row.unit not in UNITS_NOT_IN_LOG
            ):
                for value in (*row.ours, *row.theirs):
                    assert value is None or spellings(value) & numbers, f"{row.workload}: {value}"


def test_every_benchmark_can_store_its_results(subtests):
    for script in SCRIPTS:
        with subtests.test(script.name):
            text = script.read_text(encoding="utf-8")
            assert "add_save_argument(" in text
            assert re.search(r"\b(save|benchmark_results\.save)\(", text)


def test_new_run_replaces_the_run_with_the_same_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark_results, "RESULTS", tmp_path / "bench" / "results")
    (tmp_path / "bench").mkdir()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("KMP_BLOCKTIME", raising=False)
    parser = argparse.ArgumentParser()
    benchmark_results.add_save_argument(parser)
    assert parser.parse_args(["--save"]).save
    for rounds, seconds in ((5, [3.0, 1.0]), (5, [2.0]), (7, [4.0])):
        monkeypatch.setattr(
            "sys.argv", ["/there/bench/train.py", "--save", "/data/a b.txt", f"--rounds={rounds}"]
        )
        benchmark_results.save(
            [benchmark_results.measure("a step", "s", seconds)], "typer", gensim="4.4"
        )
    (file,) = (tmp_path / "bench" / "results").iterdir()
    assert file.name == "train.cpu.json"
    first, second = benchmark_results.read_runs(file)
    assert first.command == "OMP_NUM_THREADS=1 python bench/train.py 'a b.txt' --rounds=5"
    assert first.rows == (Row("a step", "s", (2.0,), rounds=1),)
    assert second.versions.keys() == {"python", "clearhead", "torch", "typer", "gensim"}
    assert second.load is not None
    assert "saved in bench/results/train.cpu.json" in capsys.readouterr().out


def test_ratio_above_one_means_ours_is_better():
    (fast,) = benchmark_results.compare(
        "writing", "tok/s", {"ours": [20.0, 30.0, 25.0], "theirs": [10.0, 10.0, 20.0]}
    )
    assert (fast.ours, fast.theirs, fast.ratio) == (
        (25.0, 20.0, 30.0),
        (10.0, 10.0, 20.0),
        (2.5, 1.25, 3.0),
    )
    (slow,) = benchmark_results.compare("loading", "s", {"ours": [4.0], "theirs": [1.0]})
    assert slow.ratio == (0.25,)


# ---------------------------------------------------------------- targets
def test_target_has_a_limit_and_missed_targets_have_a_reason():
    for status in benchmark_targets.target_statuses():
        target = status.target
        assert (target.at_least is not None) + (target.at_most is not None) <= 1
        assert {target.at_least, target.at_most, target.aim} != {None}
        assert target.unit or target.peer
        assert status.row is None or target.unit in ("", status.row.unit), target
        assert target.why or not (status.is_missed or status.misses_aim or status.value is None), (
            target
        )
        assert (ROOT / "bench" / f"{target.results.split('.')[0]}.py").exists()


def status_of(ours=(), ratio=(), **limits):
    row = Row("work", "s", ours, "peer" if ratio else "", ratio=ratio)
    return TargetStatus(
        Target("area", "file.cpu", "work", **limits), row, Run("2026-11-16", "", "", {}, (row,))
    )


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (status_of(ratio=(1.2,), at_least=1.2), "met"),
        (status_of(ratio=(1.1, 1.0, 1.3), at_least=1.25), "**missed**: 0.880 × the limit"),
        (status_of(ours=(3.0,), unit="s", at_most=2), "**missed**: 1.500 × the limit"),
        (status_of(ours=(1.0,), unit="s", at_most=0), "**missed**"),
        (status_of(ours=(0.0,), unit="s", at_most=0), "met"),
        (
            status_of(ours=(None, 5.0, 9.0), unit="s", at_most=8),
            "**missed**: 1.125 × the limit",
        ),
        (status_of(ours=(None, 5.0, 9.0), unit="s", at_least=8), "**missed**: 0.625 × the limit"),
        (status_of(ratio=(1.2,), at_least=1, aim=1.5), "met; 0.80 × the aim"),
        (status_of(ratio=(1.6,), at_least=1, aim=1.5), "met, and the aim"),
        (status_of(ours=(1.0,), unit="s", aim=2), "0.50 × the aim"),
        (status_of(ours=(3.0,), unit="kB", at_most=4, aim=2), "met; 1.50 × the aim"),
        (status_of(ours=(1.5,), unit="kB", at_most=4, aim=2), "met, and the aim"),
        (TargetStatus(Target("area", "file.cpu", "work", "peer", at_least=1)), "*not measured*"),
    ],
)
def test_status_says_whether_a_target_is_met(one, verdict):
    assert benchmark_tables.format_status(one) == verdict


def test_newest_run_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_targets, "RESULTS", tmp_path)
    runs = [
        Run(day, f"python bench/a.py {day}", "here", {}, (Row("work", "s", (seconds,)),))
        for day, seconds in (("2026-11-16", 9.0), ("2026-11-15", 1.0))
    ]
    (tmp_path / "a.cpu.json").write_text(benchmark_results.format_runs(runs), encoding="utf-8")
    assert [row.ours for row, _ in benchmark_targets.newest_results()["a.cpu"]] == [(9.0,)]


# ---------------------------------------------------------------- the page
def test_page_lists_every_target_and_every_run_it_links_to():
    page = benchmark_tables.render_markdown()
    everything = benchmark_targets.target_statuses()
    for area in benchmark_targets.read_areas():
        part = page.split(f"\n## {area}\n")[1].split("\n## ")[0]
        lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
        assert len(lines) == len([s for s in everything if s.target.area == area])
        assert all(
            s.target.workload in part and benchmark_tables.format_target(s.target) in part
            for s in everything
            if s.target.area == area
        )
    short = page.split("## Missed targets")[1].split("\n## ")[0]
    assert all(s.target.why in short for s in everything if s.is_missed)
    linked, listed = (
        set(re.findall(pattern, page)) for pattern in (r"\(#run-(\d+)\)", r'id="run-(\d+)"')
    )
    assert linked == listed


def test_table_rows_have_as_many_cells_as_the_header():
    for found in re.findall(r"(?:^\|.*\n)+", benchmark_tables.render_markdown(), re.MULTILINE):
        assert len({line.count("|") for line in found.splitlines()}) == 1, found.splitlines()[0]


def test_site_inserts_the_tables_into_the_page():
    spec = importlib.util.spec_from_file_location(
        "site_hooks_of_benchmarks", ROOT / "docs" / "hooks.py"
    )
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    written = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="benchmarks.md"))
    made = hooks.on_page_markdown(written, page, None, None)
    assert benchmark_tables.render_markdown() in made
    assert made.startswith(written.split("<!--")[0])
    assert "<!-- tables -->" not in made
