"""Server metrics in Prometheus' text format. All are updated on the event loop, without locks."""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # seconds
OUTPUT_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)  # seconds

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]
Gauges = Mapping[str, tuple[str, Sequence[tuple[Labels, float]]]]  # name -> (help, values by label)


def make_labels(**labels: str) -> Labels:
    return tuple(labels.items())


class CounterMetric:
    """A monotonically increasing counter with labels."""

    def __init__(self) -> None:
        self.values: Counter[Labels] = Counter()

    def inc(self, amount: int = 1, **labels: str) -> None:
        self.values[make_labels(**labels)] += amount

    def samples(self, name: str) -> Iterator[Sample]:
        return ((name, labels, value) for labels, value in self.values.items())


class Histogram:
    """A histogram of durations with labels."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = buckets
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def observe(self, seconds: float, **labels: str) -> None:
        key = make_labels(**labels)
        counts = self.counts.setdefault(key, [0] * (len(self.buckets) + 1))
        counts[bisect_left(self.buckets, seconds)] += 1
        self.sums[key] = self.sums.get(key, 0.0) + seconds

    def samples(self, name: str) -> Iterator[Sample]:
        bounds = (*map(str, self.buckets), "+Inf")
        for labels, counts in self.counts.items():
            for bound, total in zip(bounds, accumulate(counts), strict=True):
                yield f"{name}_bucket", (*labels, ("le", bound)), total
            yield f"{name}_sum", labels, self.sums[labels]
            yield f"{name}_count", labels, sum(counts)


class Metrics:
    """Counters and histograms of a server."""

    def __init__(self) -> None:
        self.requests = CounterMetric()
        self.prompt_tokens = CounterMetric()
        self.generation_tokens = CounterMetric()
        self.time_to_first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self.time_per_output_token = Histogram(OUTPUT_TOKEN_BUCKETS)

    def render(self, gauges: Gauges) -> str:
        """Format all metrics and the given gauges for Prometheus."""
        metrics: dict[str, tuple[str, CounterMetric | Histogram]] = {
            "clearhead_requests_total": ("Completed requests.", self.requests),
            "clearhead_prompt_tokens_total": ("Prompt tokens.", self.prompt_tokens),
            "clearhead_generation_tokens_total": ("Generated tokens.", self.generation_tokens),
            "clearhead_time_to_first_token_seconds": (
                "Time from queueing a request to its first token.",
                self.time_to_first_token,
            ),
            "clearhead_time_per_output_token_seconds": (
                "Time between output tokens of a request.",
                self.time_per_output_token,
            ),
        }
        lines = []
        for name, (description, metric) in metrics.items():
            kind = "histogram" if isinstance(metric, Histogram) else "counter"
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
            lines += map(_format_sample, metric.samples(name))
        for name, (description, values) in gauges.items():
            lines += [f"# HELP {name} {description}", f"# TYPE {name} gauge"]
            lines += [_format_sample((name, labels, value)) for labels, value in values]
        return "\n".join(lines) + "\n"


def _format_sample(sample: Sample) -> str:
    name, labels, value = sample
    pairs = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def resident_memory_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
