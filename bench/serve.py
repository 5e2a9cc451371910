"""Load test of `clearhead serve` in a separate process on loopback, with random weights.

python bench/serve.py                  60 s of 64 streaming clients, 10,000 requests, 500 at once,
                                       1,000 disconnects
python bench/serve.py --seconds 10 --requests 1000 --disconnects 200

    single       one client, one stream after another: tokens per second
    concurrent   many clients; every stream must equal the library's text for its prompt and seed;
                 tokens per second relative to one client, time to first token, errors
    memory       short requests, 32 at a time: resident memory of the server
    burst        500 simultaneous requests: how many are answered, how fast the others are rejected,
                 and that the next request is answered
    disconnect   clients that disconnect during their stream: slots, queue and memory afterwards

The model is shakespeare-char (10.7M parameters, context 256) over bytes. The clients run in this
process and share the machine's cores. Results of one run.
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

import benchmark_results
import clearhead as ch

PROMPTS = ["Once upon a time", "To be, or not", "In the beginning", "Call me"]
TOKENS = 64
TEXTS = 32
BURST = 500
CONCURRENCY = 32


def request_options(number: int) -> dict[str, object]:
    """The options of one request."""
    sampling = {"temperature": 0.7 + 0.1 * (number % 5), "top_k": (0, 40)[number % 2]}
    return {
        "prompt": f"{PROMPTS[number % len(PROMPTS)]}{', and so on' * (number % 3)}",
        "seed": number,
        **sampling,
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
        match = re.search(r":(\d+)/", line)
        assert match, line
        yield int(match[1]), process.pid
    finally:
        process.terminate()
        process.wait(30)


class Clients:
    """Clients of one server."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    async def send(
        self, path: str, body: dict[str, object] | None = None
    ) -> tuple[int, asyncio.StreamReader, object]:
        """The status and the body, over a new connection."""
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
        self, request: dict[str, object], enough: int = 1 << 30
    ) -> tuple[str, int, float]:
        """The text of a stream, its number of tokens and the time to first token.

        Disconnects after `enough` tokens.
        """
        start = time.perf_counter()
        first = 0.0
        texts = []
        count = 0
        status, reader, writer = await self.send("/v1/completions", {**request, "stream": True})
        try:
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    tree = json.loads(line[6:])
                    if "error" in tree:
                        raise RuntimeError(tree["error"]["message"])
                    first = first or time.perf_counter() - start
                    texts.append(tree["choices"][0]["text"])
                    count += 1
                    if count >= enough:
                        break
                elif line.startswith(b'{"error"'):
                    raise RuntimeError(f"{status}: {line.decode()}")
            return "".join(texts), count, first
        finally:
            writer.close()

    async def complete(self, request: dict[str, object]) -> int:
        status, reader, writer = await self.send("/v1/completions", request)
        await reader.read()
        writer.close()
        return status

    async def gauge(self, name: str) -> float:
        _, reader, writer = await self.send("/metrics")
        match = re.search(
            rf"^{name}(?:{{.*}})? (.*)$", (await reader.read()).decode(), re.MULTILINE
        )
        writer.close()
        return float(match[1]) if match else 0.0

    def resident(self) -> float:
        """The server's resident memory in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def stream_concurrently(
    clients: Clients, count: int, seconds: float, expected: list[str]
) -> dict[str, object]:
    """Run clients that open one stream after another."""
    numbers = itertools.count()
    firsts = []
    errors = Counter[str]()
    wrong = 0
    tokens = streams = 0
    end = time.perf_counter() + seconds

    async def one() -> None:
        nonlocal tokens, streams, wrong
        while time.perf_counter() < end:
            number = next(numbers) % TEXTS
            try:
                text, num_tokens, first = await clients.stream(
                    {**request_options(number), "max_tokens": TOKENS}
                )
            except (RuntimeError, OSError, ValueError) as error:
                errors[f"{type(error).__name__}: {error}"[:120]] += 1
                continue
            tokens += num_tokens
            streams += 1
            wrong += text != expected[number]
            firsts.append(first)

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    seconds_spent = time.perf_counter() - start
    return {
        "clients": count,
        "streams": streams,
        "tokens_per_s": round(tokens / seconds_spent, 1),
        "first_token_ms": spread(firsts),
        "wrong": wrong,
        "errors": dict(errors),
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    ordered = sorted(seconds) or [0.0]
    return {
        f"p{p}": round(1e3 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 1)
        for p in (50, 95, 100)
    }


async def memory(clients: Clients, requests: int) -> dict[str, object]:
    """Send short requests and watch the server's memory."""
    numbers = iter(range(requests))
    resident = []
    statuses = Counter[int]()

    async def one() -> None:
        for number in numbers:
            statuses[await clients.complete({**request_options(number), "max_tokens": 4})] += 1
            if number % (requests // 10) == requests // 10 - 1:
                resident.append(round(clients.resident(), 1))

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(CONCURRENCY)))
    rate = requests / (time.perf_counter() - start)
    return {
        "requests": dict(statuses),
        "per_s": round(rate, 1),
        "resident_mib_each_tenth": resident,
    }


async def burst(clients: Clients) -> dict[str, object]:
    """Send all requests at once."""
    times: dict[int, list[float]] = {}

    async def one(number: int) -> None:
        start = time.perf_counter()
        status = await clients.complete({**request_options(number), "max_tokens": TOKENS})
        times.setdefault(status, []).append(time.perf_counter() - start)

    await asyncio.gather(*map(one, range(BURST)))
    by_status = {
        str(status): {"count": len(seconds), **spread(seconds)}
        for status, seconds in sorted(times.items())
    }
    return {
        **by_status,
        "next": await clients.complete({**request_options(0), "max_tokens": TOKENS}),
    }


async def disconnect(clients: Clients, count: int) -> dict[str, object]:
    """Disconnect in the middle of streams."""
    before = clients.resident()
    numbers = iter(range(count))
    errors = Counter[str]()

    async def one() -> None:
        for number in numbers:
            try:
                await clients.stream(
                    {**request_options(number), "max_tokens": TOKENS}, enough=1 + number % 8
                )
            except (RuntimeError, OSError) as error:
                errors[str(error)[:80]] += 1

    await asyncio.gather(*(one() for _ in range(CONCURRENCY)))
    await asyncio.sleep(0.5)
    gauges = {
        name: await clients.gauge(f"clearhead_{name}")
        for name in ("num_sequences_running", "num_sequences_waiting")
    }
    return {
        **gauges,
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
    parser.add_argument("--disconnects", type=int, default=1000)
    parser.add_argument("--max-batch-size", type=int, default=64)
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    model = ch.new("shakespeare-char", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=1)
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    print(f"{model!r}, OMP_NUM_THREADS={threads}", flush=True)
    requests = [request_options(number) for number in range(TEXTS)]
    expected = [
        model.generate(request.pop("prompt"), max_tokens=TOKENS, **request).text
        for request in requests
    ]
    with tempfile.TemporaryDirectory() as folder:
        ch.save(model, Path(folder) / "model")
        del model
        flags = ("--max-batch-size", str(args.max_batch_size))
        with serving(Path(folder) / "model", *flags) as (port, pid):
            clients = Clients(port, pid)
            results = {}
            for name, work in (
                ("single", stream_concurrently(clients, 1, args.seconds / 4, expected)),
                (
                    "concurrent",
                    stream_concurrently(clients, args.clients, args.seconds, expected),
                ),
                ("memory", memory(clients, args.requests)),
                ("burst", burst(clients)),
                ("disconnect", disconnect(clients, args.disconnects)),
            ):
                results[name] = asyncio.run(work)
                print(f"{name:<10} {json.dumps(results[name])}", flush=True)
    if args.save:
        benchmark_results.save(make_rows(args, results), "fastapi", "uvicorn")


def make_rows(args: argparse.Namespace, results: dict[str, dict]) -> list[benchmark_results.Row]:
    """The saved rows; of a single run, so without spread."""
    concurrent = results["concurrent"]
    resident = results["memory"]["resident_mib_each_tenth"]
    answered = results["burst"].get("200", {})
    rejected = results["burst"].get("429", {})
    clients = f"{args.clients} clients, {args.seconds:g} s"
    requests = f"{BURST} simultaneous requests"
    disconnects = f"{args.disconnects:,} disconnects: slots in use afterwards"
    values = {
        (f"{clients}: time to first token, p50", "ms"): concurrent["first_token_ms"]["p50"],
        (f"{clients}: time to first token, p95", "ms"): concurrent["first_token_ms"]["p95"],
        (f"{clients}: failed streams", "streams"): sum(concurrent["errors"].values()),
        (f"{clients}: streams that differ from the same seed alone", "streams"): concurrent[
            "wrong"
        ],
        (
            f"{args.requests:,} requests: memory after the last tenth",
            "× after the first tenth",
        ): resident[-1] / resident[0],
        (f"{requests}: answered or rejected with 429", "requests"): answered.get("count", 0)
        + rejected.get("count", 0),
        (f"{requests}: slowest rejection", "ms"): rejected.get("p100", 0),
        (f"{requests}: next request answered", "requests"): int(results["burst"]["next"] == 200),
        (disconnects, "slots"): results["disconnect"]["num_sequences_running"],
    }
    rates = benchmark_results.compare(
        f"{clients}: throughput",
        "tok/s",
        {
            "ours": [concurrent["tokens_per_s"]],
            "one client": [results["single"]["tokens_per_s"]],
        },
    )
    return rates + [
        benchmark_results.measure(workload, unit, [value])
        for (workload, unit), value in values.items()
    ]


if __name__ == "__main__":
    main()
