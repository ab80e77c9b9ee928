"""Converts a server's state and tallies to metric families of the Prometheus client."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from vlmkit.interfaces.engine import NUM_RECOMPUTED, NUM_REPLAYED
from vlmkit.interfaces.media_encoder import (
    NUM_REMOTE,
    NUM_REMOTE_FAILURES,
    NUM_REMOTE_FALLBACKS,
    REMOTE_FAILURES,
)
from vlmkit_monitor.names import METRICS, MetricSpec
from vlmkit_monitor.tally import Buckets, Tally
from vlmkit_server.interfaces.monitor import ModelState, ServerState

_MODEL_STATES = ("unloaded", "waiting", "loading", "ready", "unloading", "failed")
_COUNTED = {
    "num_steps": "steps_total",
    "num_overlapped_steps": "overlapped_steps_total",
    NUM_REPLAYED: "replayed_steps_total",
    NUM_RECOMPUTED: "recomputed_steps_total",
    "num_tokens_computed": "computed_tokens_total",
    "num_tokens_sampled": "generated_tokens_total",
    "num_tokens_drafted": "draft_tokens_total",
    "num_drafts_accepted": "accepted_draft_tokens_total",
    "num_media_encoded": "encoded_media_total",
    "num_image_hits": "image_cache_hits_total",
    "num_image_misses": "image_cache_misses_total",
    "num_feature_hits": "encoder_cache_hits_total",
    "num_feature_misses": "encoder_cache_misses_total",
    NUM_REMOTE: "remote_encodings_total",
    NUM_REMOTE_FALLBACKS: "remote_encoding_fallbacks_total",
    "num_preemptions": "preemptions_total",
}
_ENDS = {"num_finished": "finished", "num_aborted": "aborted", "num_failed": "failed"}


def text(label: str) -> str:
    """Return a label that UTF-8 can encode."""
    return label.encode(errors="replace").decode()


class Families:
    """All metrics of vlmkit with their series."""

    def __init__(self) -> None:
        self._found: dict[str, Metric] = {}
        for metric in METRICS:
            self._found[metric.name.removeprefix("vlmkit_")] = _family(metric)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._found.values())

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add a series of a counter or a gauge."""
        family = self._found[name]
        if not isinstance(family, CounterMetricFamily | GaugeMetricFamily):
            raise TypeError(f"{name!r} is a histogram")
        family.add_metric([text(label) for label in labels], value)

    def add_histogram(self, name: str, buckets: Buckets, *labels: str) -> None:
        """Add a series of a histogram."""
        family = self._found[name]
        if not isinstance(family, HistogramMetricFamily):
            raise TypeError(f"{name!r} is no histogram")
        labels = tuple(text(label) for label in labels)
        family.add_metric(labels, buckets.cumulated(), sum_value=buckets.total)

    def add_tally(self, tally: Tally, *first: str) -> None:
        """Add all counts of a tally; ``first`` precedes the labels of each."""
        for (name, labels), count in tally.counts.copy().items():
            self.add(name, count, *first, *labels)
        for (name, labels), buckets in tally.histograms.copy().items():
            self.add_histogram(name, buckets, *first, *labels)

    def add_state(self, state: ServerState) -> None:
        """Add the state of a server."""
        self.add("ready", state.status == "ready")
        self.add("http_requests_open", state.num_open)
        for resource, (used, most) in state.resources.items():
            self.add("resource_used", used, resource)
            self.add("resource_limit", most, resource)
        self.add("unconstrained_requests_total", state.num_unconstrained)
        for key, num in state.num_ignored.items():
            self.add("ignored_keys_total", num, key)
        for model in state.models:
            self._add_model(model)

    def _add_model(self, model: ModelState) -> None:
        name = model.name
        for state in _MODEL_STATES:
            self.add("model_state", model.state == state, name, state)
            self.add("model_state_changes_total", model.changes.get(state, 0), name, state)
        self.add("model_load_seconds", model.load_s, name)
        if model.memory_bytes is not None:
            self.add("model_memory_bytes", model.memory_bytes, name)
        self.add("model_users", model.num_users, name)
        self.add("model_load_waiters", model.num_waiting, name)
        self._add_counters(name, model.counters)
        running = waiting = 0
        if (stats := model.stats) is not None:
            running, waiting = stats.num_running, stats.num_waiting
            lost = sum(own.get("num_events_lost", 0) for own in stats.observed.values())
            self.add("observer_events_lost_total", lost, name)
            for observer, numbers in stats.observed.items():
                for stat, number in numbers.items():
                    self.add("observer_stat", number, name, observer, stat)
            self.add("kv_cache_tokens", model.capacity_tokens, name)
            if stats.num_free_tokens is not None:
                used = model.capacity_tokens - stats.num_free_tokens
                self.add("kv_cache_used_tokens", used, name)
        self.add("sequences_running", running, name)
        self.add("sequences_waiting", waiting, name)

    def _add_counters(self, name: str, counters: Mapping[str, int]) -> None:
        for counter, own in _COUNTED.items():
            self.add(own, counters.get(counter, 0), name)
        for reason in REMOTE_FAILURES:
            num = counters.get(f"{NUM_REMOTE_FAILURES}{reason}", 0)
            self.add("remote_encoding_failures_total", num, name, reason)
        for counter, end in _ENDS.items():
            self.add("sequences_total", counters.get(counter, 0), name, end)


def _family(metric: MetricSpec) -> Metric:
    kinds = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    name = metric.name.removesuffix("_total")
    family: Metric = kinds[metric.type](name, metric.meaning, labels=metric.labels)
    return family
