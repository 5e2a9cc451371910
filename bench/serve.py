"""The server under many clients: `clearhead serve` in a process of its own, on loopback, with random weights.

python bench/serve.py                          60 s of 64 streaming clients, 10,000 requests, 500 at once, 1,000 leaving
python bench/serve.py --seconds 10 --requests 1000 --leaving 200

    one        one client, one stream after the other: tokens a second
    many       so many clients at once for so long; every stream must be, to the character, what the library writes for
               its prompt and seed; tokens a second against one client's, time to the first token, errors
    memory     so many short requests, 32 at a time: resident memory of the server on the way
    crowd      500 requests at the same moment: how many are served, how fast the others are refused, and that the next
               request is served
    leaving    so many clients that go away in the middle of their stream: rows, line and memory afterwards

The model is shakespeare-char (10.7M parameters, context 256) over bytes. The clients run in this process,
which takes its share of the machine's cores. Numbers of one run; where others use the machine, run it again.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import clearhead as ch
import kept

WORDS = ["Once upon a time", "To be, or not", "In the beginning", "Call me"]
TOKENS = 64
TEXTS = 32
CROWD = 500
TOGETHER = 32


def text(number: int) -> dict[str, object]:
    """One of the texts that are asked for: a prompt, a seed, how it is drawn."""
    hot = {"temperature": 0.7 + 0.1 * (number % 5), "top_k": (0, 40)[number % 2]}
    return {
        "prompt": f"{WORDS[number % len(WORDS)]}{', and so on' * (number % 3)}",
        "seed": number,
        **hot,
    }


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[int, int]]:
    """A server's port and process id."""
    command = [
        sys.executable,
        "-m",
        "clearhead",
        "serve",
        f"model={folder}",
        "--port",
        "0",
        *options,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r":(\d+)/", line)
        assert found, line
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait(30)


class Clients:
    """What they ask of one server."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    async def ask(
        self, path: str, body: dict[str, object] | None = None
    ) -> tuple[int, asyncio.StreamReader, object]:
        """The status, and what follows: one connection for each request, as different people have."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = b"" if body is None else json.dumps({"model": "model", **body}).encode()
        head = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            "Host: localhost",
            "Connection: close",
        ]
        head += ["Content-Type: application/json", f"Content-Length: {len(data)}", "", ""]
        writer.write("\r\n".join(head).encode() + data)
        first = await reader.readline()
        while await reader.readline() not in (b"\r\n", b""):
            pass
        return int(first.split()[1]), reader, writer

    async def stream(
        self, wish: dict[str, object], enough: int = 1 << 30
    ) -> tuple[str, int, float]:
        """The text of a stream, how many tokens it had, and when the first came; after `enough` of them one leaves."""
        begun = time.perf_counter()
        first = 0.0
        said = []
        count = 0
        status, reader, writer = await self.ask("/v1/completions", {**wish, "stream": True})
        try:
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    tree = json.loads(line[6:])
                    if "error" in tree:
                        raise RuntimeError(tree["error"]["message"])
                    first = first or time.perf_counter() - begun
                    said.append(tree["choices"][0]["text"])
                    count += 1
                    if count >= enough:
                        break
                elif line.startswith(b'{"error"'):
                    raise RuntimeError(f"{status}: {line.decode()}")
            return "".join(said), count, first
        finally:
            writer.close()

    async def whole(self, wish: dict[str, object]) -> int:
        status, reader, writer = await self.ask("/v1/completions", wish)
        await reader.read()
        writer.close()
        return status

    async def gauge(self, name: str) -> float:
        _, reader, writer = await self.ask("/metrics")
        found = re.search(
            rf"^{name}(?:{{.*}})? (.*)$", (await reader.read()).decode(), re.MULTILINE
        )
        writer.close()
        return float(found[1]) if found else 0.0

    def resident(self) -> float:
        """MiB of the server."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def many(
    clients: Clients, count: int, seconds: float, expected: list[str]
) -> dict[str, object]:
    """So many clients, each with one stream after the other."""
    numbers = itertools.count()
    firsts = []
    errors = Counter[str]()
    wrong = 0
    tokens = streams = 0
    until = time.perf_counter() + seconds

    async def one() -> None:
        nonlocal tokens, streams, wrong
        while time.perf_counter() < until:
            number = next(numbers) % TEXTS
            try:
                said, written, first = await clients.stream({**text(number), "max_tokens": TOKENS})
            except (RuntimeError, OSError, ValueError) as error:
                errors[f"{type(error).__name__}: {error}"[:120]] += 1
                continue
            tokens = tokens + written
            streams = streams + 1
            wrong = wrong + (said != expected[number])
            firsts.append(first)

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    spent = time.perf_counter() - begun
    return {
        "clients": count,
        "streams": streams,
        "tokens_per_s": round(tokens / spent, 1),
        "first_token_ms": spread(firsts),
        "wrong": wrong,
        "errors": dict(errors),
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds) or [0.0]
    return {
        f"p{p}": round(1e3 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 1)
        for p in (50, 95, 100)
    }


async def memory(clients: Clients, requests: int) -> dict[str, object]:
    """Short requests, and how much memory the server has on the way."""
    numbers = iter(range(requests))
    seen = []
    statuses = Counter[int]()

    async def one() -> None:
        for number in numbers:
            statuses[await clients.whole({**text(number), "max_tokens": 4})] += 1
            if number % (requests // 10) == requests // 10 - 1:
                seen.append(round(clients.resident(), 1))

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(TOGETHER)))
    rate = requests / (time.perf_counter() - begun)
    return {"requests": dict(statuses), "per_s": round(rate, 1), "resident_mib_each_tenth": seen}


async def crowd(clients: Clients) -> dict[str, object]:
    """All at the same moment."""
    times: dict[int, list[float]] = {}

    async def one(number: int) -> None:
        begun = time.perf_counter()
        status = await clients.whole({**text(number), "max_tokens": TOKENS})
        times.setdefault(status, []).append(time.perf_counter() - begun)

    await asyncio.gather(*map(one, range(CROWD)))
    told = {
        str(status): {"count": len(spent), **spread(spent)}
        for status, spent in sorted(times.items())
    }
    return {**told, "next": await clients.whole({**text(0), "max_tokens": TOKENS})}


async def leaving(clients: Clients, count: int) -> dict[str, object]:
    """Clients that go away in the middle."""
    before = clients.resident()
    numbers = iter(range(count))
    errors = Counter[str]()

    async def one() -> None:
        for number in numbers:
            try:
                await clients.stream({**text(number), "max_tokens": TOKENS}, enough=1 + number % 8)
            except (RuntimeError, OSError) as error:
                errors[str(error)[:80]] += 1

    await asyncio.gather(*(one() for _ in range(TOGETHER)))
    await asyncio.sleep(0.5)
    left = {
        name: await clients.gauge(f"clearhead_{name}") for name in ("slots_used", "waiting_texts")
    }
    return {
        **left,
        "errors": dict(errors),
        "resident_mib": [round(before, 1), round(clients.resident(), 1)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--leaving", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=64)
    kept.offer(parser)
    given = parser.parse_args()
    model = ch.new("shakespeare-char", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=1)
    print(
        f"{model!r}, {given.slots} rows, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}",
        flush=True,
    )
    wishes = [text(number) for number in range(TEXTS)]
    expected = [
        model.generate(wish.pop("prompt"), max_tokens=TOKENS, **wish).text for wish in wishes
    ]

    with tempfile.TemporaryDirectory() as place:
        ch.save(model, Path(place) / "model")
        del model
        with serving(Path(place) / "model", "--slots", str(given.slots)) as (port, pid):
            clients = Clients(port, pid)

            def told(name: str, found: dict[str, object]) -> dict[str, object]:
                print(f"{name:<8} {json.dumps(found)}", flush=True)
                return found

            one = told("one", asyncio.run(many(clients, 1, given.seconds / 4, expected)))
            all_ = told("many", asyncio.run(many(clients, given.clients, given.seconds, expected)))
            print(
                f"many / one: {float(str(all_['tokens_per_s'])) / float(str(one['tokens_per_s'])):.2f}",
                flush=True,
            )
            asked = told("memory", asyncio.run(memory(clients, given.requests)))
            at_once = told("crowd", asyncio.run(crowd(clients)))
            left = told("leaving", asyncio.run(leaving(clients, given.leaving)))
    if given.keep:
        kept.write(figures(given, one, all_, asked, at_once, left), "fastapi", "uvicorn")


def figures(
    given: argparse.Namespace, one: dict, all_: dict, asked: dict, at_once: dict, left: dict
) -> list[kept.Row]:
    """What is kept: a single run, so there is no spread."""
    clients = f"{given.clients} clients, {given.seconds:g} s"
    seen = asked["resident_mib_each_tenth"]
    answered, refused = (at_once.get(status, {}) for status in ("200", "429"))
    found = {
        (f"{clients}: first token, p50", "ms"): all_["first_token_ms"]["p50"],
        (f"{clients}: first token, p95", "ms"): all_["first_token_ms"]["p95"],
        (f"{clients}: streams that failed", "streams"): sum(all_["errors"].values()),
        (f"{clients}: streams unlike their seed's alone", "streams"): all_["wrong"],
        (f"{given.requests:,} requests: memory after the last tenth", "× the first's"): seen[-1]
        / seen[0],
        (f"{CROWD} at once: served, or refused with 429", "requests"): sum(
            s.get("count", 0) for s in (answered, refused)
        ),
        (f"{CROWD} at once: slowest refusal", "ms"): refused.get("p100", 0),
        (f"{CROWD} at once: the next request is served", "requests"): int(at_once["next"] == 200),
        (f"{given.leaving:,} that leave midway: rows held afterwards", "rows"): left["slots_used"],
    }
    speeds = kept.rows(
        f"{clients}: speed",
        "tok/s",
        {"ours": [all_["tokens_per_s"]], "one client": [one["tokens_per_s"]]},
    )
    return speeds + [kept.row(work, unit, [value]) for (work, unit), value in found.items()]


if __name__ == "__main__":
    main()
