"""Server metrics for Prometheus. All are updated on the event loop."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from clearhead.serve.registry import LoadedModel

FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # seconds
OUTPUT_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)  # seconds


class Metrics(CollectorRegistry):
    """Counters and histograms of a server, and the memory of its process."""

    def __init__(self) -> None:
        super().__init__()
        ProcessCollector(registry=self)
        self.requests = Counter(
            "clearhead_requests", "Completed requests.", ("path", "status"), registry=self
        )
        self.prompt_tokens = Counter(
            "clearhead_prompt_tokens", "Prompt tokens.", ("model",), registry=self
        )
        self.generation_tokens = Counter(
            "clearhead_generation_tokens", "Generated tokens.", ("model",), registry=self
        )
        self.time_to_first_token = Histogram(
            "clearhead_time_to_first_token_seconds",
            "Time from queueing a request to its first token.",
            ("model",),
            buckets=FIRST_TOKEN_BUCKETS,
            registry=self,
        )
        self.time_per_output_token = Histogram(
            "clearhead_time_per_output_token_seconds",
            "Time between output tokens of a request.",
            ("model",),
            buckets=OUTPUT_TOKEN_BUCKETS,
            registry=self,
        )


class ModelCollector(Collector):
    """Gauges of the loaded models."""

    def __init__(self, loaded: "Mapping[str, LoadedModel]") -> None:
        self.loaded = loaded

    def collect(self) -> Iterator[GaugeMetricFamily]:
        num_bytes = _gauge("model_memory_bytes", "Memory of models and their KV caches.")
        num_waiting = _gauge("num_sequences_waiting", "Queued sequences.")
        num_running = _gauge("num_sequences_running", "Sequences being generated.")
        max_running = _gauge("max_num_sequences", "Maximum batch size.")
        for name, loaded_model in self.loaded.items():
            num_bytes.add_metric([name], loaded_model.num_bytes)
            if worker := loaded_model.existing_worker:
                num_waiting.add_metric([name], worker.text_queue.num_waiting)
                if scheduler := worker.existing_scheduler:
                    num_running.add_metric([name], len(scheduler.running))
                    max_running.add_metric([name], scheduler.engine.slots)
        yield from (num_bytes, num_waiting, num_running, max_running)


def _gauge(name: str, description: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"clearhead_{name}", description, labels=("model",))
