"""Startup time: the help, the first token of a bundled model, and the page.

python bench/startup.py [--rounds 5] [--save]

Interleaved rounds, a separate process each, with files in the page cache (the first round is not
counted). Wall time and CPU time. The page is `clearhead explore` in a terminal, from the command
until its address answers.
"""

import argparse
import os
import pty
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

import benchmark_results
from benchmark_tables import format_measurement

PROMPT = "Once upon a time"
COMMAND = [sys.executable, "-m", "clearhead"]


def show_help() -> None:
    subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)


def import_package() -> None:
    subprocess.run([sys.executable, "-c", "import clearhead"], check=True)


def generate_first_token() -> None:
    """Run until there is output after the prompt."""
    words = [*COMMAND, "generate", "story", PROMPT, "--stream", "--max-tokens", "40"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = b""
        while len(output.strip()) <= len(PROMPT):
            more = os.read(process.stdout.fileno(), 1000)
            assert more, f"the process ended after {output!r}"
            output += more
        process.kill()


def open_page() -> None:
    """Run in a terminal, with a browser that does nothing."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"BROWSER": "true", "COLUMNS": "200"}
    with subprocess.Popen(
        [*COMMAND, "explore"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        output = ""
        while not (address := re.search(r"http://[\w.:]+/", output)):
            output += os.read(ours, 1000).decode(errors="replace")
        with urllib.request.urlopen(address[0]) as response:
            assert response.status == 200
        process.terminate()
    os.close(ours)
    os.close(theirs)


WORKLOADS: dict[str, Callable[[], None]] = {
    "import clearhead": import_package,
    "clearhead --help": show_help,
    "clearhead generate story: first token": generate_first_token,
    "clearhead explore: page ready": open_page,
}


def measure_seconds(workload: Callable[[], None]) -> dict[str, float]:
    start = time.perf_counter()
    before = os.times()
    workload()
    after = os.times()
    cpu_seconds = sum(after[2:4]) - sum(before[2:4])  # of child processes
    return {"": time.perf_counter() - start, ", CPU time": cpu_seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    rounds = [
        {name: measure_seconds(workload) for name, workload in WORKLOADS.items()}
        for _ in range(args.rounds + 1)
    ][1:]
    rows = []
    for name in WORKLOADS:
        for clock in rounds[0][name]:
            seconds = [one_round[name][clock] for one_round in rounds]
            rows.append(benchmark_results.measure(name + clock, "s", seconds))
    for row in rows:
        print(f"{row.workload:<58} {format_measurement(row.ours, 's')}")
    if args.save:
        benchmark_results.save(rows)


if __name__ == "__main__":
    main()
