"""What a server counts, as Prometheus reads it. Only the loop's thread counts, so nothing is locked."""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

FIRST_TOKEN_BUCKETS = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
)  # seconds to a first token
OUTPUT_TOKEN_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
)  # seconds from one to the next

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]
Gauges = Mapping[
    str, tuple[str, Sequence[tuple[Labels, float]]]
]  # a sentence, and values by labels, for each name


def make_labels(**given: str) -> Labels:
    return tuple(given.items())


class CounterMetric:
    """Something that only grows, by labels."""

    def __init__(self) -> None:
        self.values: Counter[Labels] = Counter()

    def inc(self, amount: int = 1, **given: str) -> None:
        self.values[make_labels(**given)] += amount

    def samples(self, name: str) -> Iterator[Sample]:
        return ((name, label, value) for label, value in self.values.items())


class Histogram:
    """How often something took how long, by labels."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = dict[Labels, list[int]]()
        self.sums = Counter[Labels]()

    def observe(self, seconds: float, **given: str) -> None:
        label = make_labels(**given)
        counts = self.counts.setdefault(label, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, seconds)] += 1
        self.sums[label] += seconds  # type: ignore[assignment]  # a Counter adds any numbers

    def samples(self, name: str) -> Iterator[Sample]:
        for label, counts in self.counts.items():
            for bound, total in zip(
                (*map(str, self.bounds), "+Inf"), accumulate(counts), strict=True
            ):
                yield f"{name}_bucket", (*label, ("le", bound)), total
            yield f"{name}_sum", label, self.sums[label]
            yield f"{name}_count", label, sum(counts)


class Metrics:
    """All that is counted."""

    def __init__(self) -> None:
        self.requests = CounterMetric()
        self.prompt_tokens = CounterMetric()
        self.generation_tokens = CounterMetric()
        self.time_to_first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self.time_per_output_token = Histogram(OUTPUT_TOKEN_BUCKETS)

    def render(self, now: Gauges) -> str:
        """In Prometheus' format, with what is to be told of this moment."""
        counted: dict[str, tuple[str, CounterMetric | Histogram]] = {
            "clearhead_requests_total": ("Requests answered.", self.requests),
            "clearhead_prompt_tokens_total": ("Tokens of prompts.", self.prompt_tokens),
            "clearhead_written_tokens_total": ("Tokens written.", self.generation_tokens),
            "clearhead_first_token_seconds": (
                "From where a text begins to wait to its first token.",
                self.time_to_first_token,
            ),
            "clearhead_next_token_seconds": (
                "From one token of a request to the next.",
                self.time_per_output_token,
            ),
        }
        lines = []
        for name, (sentence, one) in counted.items():
            kind = "histogram" if isinstance(one, Histogram) else "counter"
            lines += [
                f"# HELP {name} {sentence}",
                f"# TYPE {name} {kind}",
                *map(_line, one.samples(name)),
            ]
        for name, (sentence, values) in now.items():
            samples = [(name, label, value) for label, value in values]
            lines += [f"# HELP {name} {sentence}", f"# TYPE {name} gauge", *map(_line, samples)]
        return "\n".join(lines) + "\n"


def _line(sample: Sample) -> str:
    name, label, value = sample
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in label)
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def resident_memory_bytes() -> int:
    """Bytes of memory that this process has now; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
