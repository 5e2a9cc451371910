"""How long a person waits after a command: for help, for the first word of a bundled model, for the page.

python bench/start.py [--rounds 5] [--keep]

Each is a process of its own, in turns, with files that were read before (the first turn is not counted). By the clock
and, because others may use the machine, by the processor's time. The page is `clearhead demo` in a terminal, from the
command until its address answers.
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

import kept
from shown import told

PROMPT = "Once upon a time"
COMMAND = [sys.executable, "-m", "clearhead"]


def help_() -> None:
    subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)


def import_() -> None:
    subprocess.run([sys.executable, "-c", "import clearhead"], check=True)


def token() -> None:
    """Until something stands after the prompt."""
    words = [*COMMAND, "generate", "story", PROMPT, "--stream", "--max-tokens", "40"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = b""
        while len(seen.strip()) <= len(PROMPT):
            more = os.read(process.stdout.fileno(), 1000)
            assert more, f"it ended after {seen!r}"
            seen += more
        process.kill()


def page() -> None:
    """In a terminal, with a browser that does nothing."""
    ours, theirs = pty.openpty()
    wide = os.environ | {"BROWSER": "true", "COLUMNS": "200"}
    with subprocess.Popen(
        [*COMMAND, "demo"], stdin=theirs, stdout=theirs, stderr=theirs, env=wide
    ) as process:
        seen = ""
        while not (address := re.search(r"http://[\w.:]+/", seen)):
            seen += os.read(ours, 1000).decode(errors="replace")
        with urllib.request.urlopen(address[0]) as answer:
            assert answer.status == 200
        process.terminate()
    os.close(ours)
    os.close(theirs)


WORKS: dict[str, Callable[[], None]] = {
    "import clearhead": import_,
    "clearhead --help": help_,
    "clearhead generate story: first token": token,
    "clearhead demo: the page answers": page,
}


def seconds(work: Callable[[], None]) -> dict[str, float]:
    start = time.perf_counter()
    before = os.times()
    work()
    after = os.times()
    processor = sum(after[2:4]) - sum(before[2:4])  # of children that ended
    return {"": time.perf_counter() - start, ", processor's time": processor}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    kept.offer(parser)
    given = parser.parse_args()
    turns = [
        {name: seconds(work) for name, work in WORKS.items()} for _ in range(given.rounds + 1)
    ][1:]
    rows = [
        kept.row(name + by, "s", [turn[name][by] for turn in turns])
        for name in WORKS
        for by in turns[0][name]
    ]
    for row in rows:
        print(f"{row.work:<58} {told(row.ours, 's')}")
    if given.keep:
        kept.write(rows)


if __name__ == "__main__":
    main()
