"""The same metrics under the names of vLLM, so that dashboards for vLLM work.

``DASHBOARD_SERIES`` are the series in the queries of vLLM's own dashboard for Grafana,
``examples/observability/prometheus_grafana/grafana.json`` of vllm-project/vllm, read at commit
4b5c627c. docs/reference/metrics.md defines the meaning of each name here. Metrics that vlmkit does
not have are left out.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from vlmkit_monitor.families import text
from vlmkit_monitor.tally import Tally
from vlmkit_server.interfaces.monitor import ModelState, ServerState

LABELS = ("model_name", "engine")
ENGINE = "0"

HISTOGRAMS = {
    "vllm:e2e_request_latency_seconds": "request_seconds",
    "vllm:time_to_first_token_seconds": "time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "token_gap_seconds",
    "vllm:request_time_per_output_token_seconds": "time_per_output_token_seconds",
    "vllm:request_queue_time_seconds": "queue_seconds",
    "vllm:request_prefill_time_seconds": "prefill_seconds",
    "vllm:request_decode_time_seconds": "decode_seconds",
    "vllm:request_prompt_tokens": "request_prompt_tokens",
    "vllm:request_generation_tokens": "request_generated_tokens",
    "vllm:request_max_num_generation_tokens": "longest_choice_tokens",
    "vllm:request_params_n": "request_choices",
    "vllm:request_params_max_tokens": "request_max_tokens",
    "vllm:iteration_tokens_total": "step_tokens",
}
"""The histogram of vlmkit for each of vLLM's."""

COUNTERS = {
    "vllm:generation_tokens": "num_tokens_sampled",
    "vllm:num_preemptions": "num_preemptions",
    "vllm:spec_decode_num_draft_tokens": "num_tokens_drafted",
    "vllm:spec_decode_num_accepted_tokens": "num_drafts_accepted",
}
"""The runner's counter for each of vLLM's."""

DASHBOARD_SERIES = (
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_count",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:kv_cache_usage_perc",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_success_total",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_max_num_generation_tokens_sum",
)
"""All series that the dashboard queries; each has the label ``model_name``."""


def vllm_families(
    state: ServerState, tallies: Mapping[str, Tally], http: Tally
) -> Iterator[Metric]:
    """Yield a server's metrics under the names of vLLM.

    Args:
        state: the state of the server.
        tallies: the tally of each model's requests.
        http: the tally of all HTTP answers.
    """
    yield from _histograms(tallies)
    yield from _counters(state, tallies)
    yield from _gauges(state)
    yield _http_requests(http)


def _histograms(tallies: Mapping[str, Tally]) -> Iterator[Metric]:
    for name, own in HISTOGRAMS.items():
        family = HistogramMetricFamily(name, f"vlmkit_{own}, by vLLM's name", labels=LABELS)
        for model, tally in tallies.items():
            if (buckets := tally.histograms.get((own, ()))) is not None:
                labels = (text(model), ENGINE)
                family.add_metric(labels, buckets.cumulated(), sum_value=buckets.total)
        yield family


def _counters(state: ServerState, tallies: Mapping[str, Tally]) -> Iterator[Metric]:
    for name, own in COUNTERS.items():
        yield _counter(name, {m.name: m.counters.get(own, 0) for m in state.models})
    prompts = {
        model: sum(tally.counts["prompt_tokens_total", (kind,)] for kind in ("text", "image"))
        for model, tally in tallies.items()
    }
    yield _counter("vllm:prompt_tokens", prompts)
    yield _counter("vllm:prefix_cache_queries", prompts)
    cached = {m: t.counts["cached_prompt_tokens_total", ()] for m, t in tallies.items()}
    yield _counter("vllm:prefix_cache_hits", cached)
    hits = {m.name: m.counters.get("num_feature_hits", 0) for m in state.models}
    misses = {m.name: m.counters.get("num_feature_misses", 0) for m in state.models}
    yield _counter("vllm:mm_cache_queries", {name: hits[name] + misses[name] for name in hits})
    yield _counter("vllm:mm_cache_hits", hits)
    ended = CounterMetricFamily(
        "vllm:request_success", "vlmkit_choices_total", labels=(*LABELS, "finished_reason")
    )
    for model, tally in tallies.items():
        for (name, labels), count in tally.counts.items():
            if name == "choices_total":
                ended.add_metric((text(model), ENGINE, *labels), count)
    yield ended


def _counter(name: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, "of vlmkit, by vLLM's name", labels=LABELS)
    for model, value in values.items():
        family.add_metric((text(model), ENGINE), value)
    return family


def _gauges(state: ServerState) -> Iterator[Metric]:
    kinds: dict[str, Callable[[ModelState], float | None]] = {
        "vllm:num_requests_running": lambda model: model.stats.num_running if model.stats else 0,
        "vllm:num_requests_waiting": lambda model: model.stats.num_waiting if model.stats else 0,
        "vllm:kv_cache_usage_perc": _share_used,
    }
    for name, value_of in kinds.items():
        family = GaugeMetricFamily(name, "of vlmkit, by vLLM's name", labels=LABELS)
        for model in state.models:
            if (value := value_of(model)) is not None:
                family.add_metric((text(model.name), ENGINE), value)
        yield family


def _share_used(model: ModelState) -> float | None:
    """Return the used share of a cache, from 0 to 1; None if it is unknown."""
    if model.stats is None or model.stats.num_free_tokens is None or not model.capacity_tokens:
        return None
    return 1.0 - model.stats.num_free_tokens / model.capacity_tokens


def _http_requests(http: Tally) -> Metric:
    """Return HTTP answers as vLLM's instrumentation counts them."""
    labels = ("handler", "method", "status")
    family = CounterMetricFamily("http_requests", "vlmkit_http_requests_total", labels=labels)
    sums: dict[tuple[str, str, str], float] = {}
    for (name, own), count in http.counts.copy().items():
        if name == "http_requests_total":
            method, route, status = own
            key = (route, method, f"{status[:1]}xx")
            sums[key] = sums.get(key, 0) + count
    for key, total in sums.items():
        family.add_metric(key, total)
    return family
