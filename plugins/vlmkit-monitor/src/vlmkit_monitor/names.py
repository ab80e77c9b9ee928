"""All metrics of vlmkit as data: names, labels and descriptions.

Labels are few and have bounded values: models, routes, statuses, codes and reasons of the server.
No label holds client text or a tenant.
"""

from typing import Literal, NamedTuple

Type = Literal["counter", "gauge", "histogram"]

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0,
    600.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
FEW = (0, 1, 2, 4, 8, 16, 32, 64, 128)


class MetricSpec(NamedTuple):
    """One metric.

    Attributes:
        name: the name in Prometheus.
        type: the type in Prometheus.
        labels: the names of its labels.
        meaning: the description, one line.
        bounds: the upper bounds of a histogram's buckets.
    """

    name: str
    type: Type
    labels: tuple[str, ...]
    meaning: str
    bounds: tuple[float, ...] = ()


def _counter(name: str, labels: str, meaning: str) -> MetricSpec:
    return MetricSpec(f"vlmkit_{name}_total", "counter", tuple(labels.split()), meaning)


def _gauge(name: str, labels: str, meaning: str) -> MetricSpec:
    return MetricSpec(f"vlmkit_{name}", "gauge", tuple(labels.split()), meaning)


def _histogram(
    name: str, labels: str, meaning: str, bounds: tuple[float, ...] = SECONDS
) -> MetricSpec:
    return MetricSpec(f"vlmkit_{name}", "histogram", tuple(labels.split()), meaning, bounds)


METRICS = (
    # HTTP
    _counter("http_requests", "method route status", "requests that were answered"),
    _histogram("http_request_seconds", "route", "from a request's headers to its last byte"),
    _gauge("http_requests_open", "", "requests of any kind that are under way"),
    _counter("refusals", "code", "answers and streams that ended with an error, by its code"),
    # server
    _gauge("ready", "", "1 where new work is taken, as /readyz says"),
    _gauge("resource_used", "resource", "what is used of a resource, by all"),
    _gauge("resource_limit", "resource", "how much there is of a resource"),
    _counter("ignored_keys", "key", "requests with a key that had no effect"),
    _counter("unconstrained_requests", "", "requests with schemas that were not enforced in whole"),
    _histogram("event_loop_lag_seconds", "", "how much later than due the event loop came"),
    # models
    _gauge("model_state", "model state", "1 for the state that a model is in"),
    _counter("model_state_changes", "model state", "how often a model came to be in a state"),
    _gauge("model_load_seconds", "model", "how long loading took last"),
    _gauge("model_memory_bytes", "model", "what a model counts for in the memory budget"),
    _gauge("model_users", "model", "requests that a model answers"),
    _gauge("model_load_waiters", "model", "requests that wait for a model to be loaded"),
    # engine
    _gauge("sequences_running", "model", "sequences that have room in the cache"),
    _gauge("sequences_waiting", "model", "sequences that wait for room"),
    _gauge("kv_cache_tokens", "model", "tokens that the cache holds"),
    _gauge("kv_cache_used_tokens", "model", "tokens that sequences have room for"),
    _counter("steps", "model", "steps of the engine"),
    _counter("overlapped_steps", "model", "steps that started before the last one was read"),
    _counter("replayed_steps", "model", "steps that a CUDA graph computed"),
    _counter("recomputed_steps", "model", "steps of a CUDA graph that were computed without it"),
    _counter("computed_tokens", "model", "tokens that the engine computed"),
    _counter("generated_tokens", "model", "tokens that were chosen"),
    _counter("draft_tokens", "model", "tokens that were guessed"),
    _counter("accepted_draft_tokens", "model", "tokens that were guessed right"),
    _counter("encoded_media", "model", "pictures and other media that were encoded"),
    _counter("image_cache_hits", "model", "images that were preprocessed before"),
    _counter("image_cache_misses", "model", "images that were not"),
    _counter("encoder_cache_hits", "model", "media whose features were there"),
    _counter("encoder_cache_misses", "model", "media whose features were not there"),
    _counter("remote_encodings", "model", "media that other processes encoded"),
    _counter("remote_encoding_fallbacks", "model", "media encoded here as no other process could"),
    _counter("remote_encoding_failures", "model reason", "media that another process failed on"),
    _counter("preemptions", "model", "sequences that lost their room"),
    _counter("sequences", "model end", "sequences that finished, were aborted or failed"),
    _histogram("step_seconds", "model", "planning, computing and choosing"),
    _histogram("step_tokens", "model", "tokens of a step", TOKENS),
    _counter("observer_events_lost", "model", "events that a slow observer was not told of"),
    _gauge("observer_stat", "model observer stat", "numbers that an observer counts itself"),
    # requests
    _counter("requests", "model", "requests that the scheduler took"),
    _counter("request_failures", "model error", "requests that failed, by the kind of error"),
    _counter("choices", "model finish_reason", "answers that ended, by why"),
    _counter("prompt_tokens", "model kind", "tokens of prompts: text, image"),
    _counter("cached_prompt_tokens", "model", "tokens of prompts that were in the cache"),
    _counter("answer_tokens", "model kind", "tokens of answers that ended: text, reasoning"),
    _histogram("request_seconds", "model", "from a prompt's making to the last token"),
    _histogram("time_to_first_token_seconds", "model", "from a prompt's making to a token"),
    _histogram("token_gap_seconds", "model", "between two tokens of an answer"),
    _histogram("time_per_output_token_seconds", "model", "decoding, for each token but the first"),
    _histogram("prepare_seconds", "model", "making a prompt: pictures, template, tokens"),
    _histogram("queue_seconds", "model", "from submission to the first step"),
    _histogram("prefill_seconds", "model", "from the first step to the first token"),
    _histogram("decode_seconds", "model", "from the first token to the end"),
    _histogram("image_seconds", "model stage", "fetch, decode, preprocess, encode of an image"),
    _histogram("request_images", "model", "images of a request", FEW),
    _histogram("request_prompt_tokens", "model", "tokens of a prompt", TOKENS),
    _histogram("request_generated_tokens", "model", "tokens of all answers to a request", TOKENS),
    _histogram("longest_choice_tokens", "model", "tokens of a request's longest answer", TOKENS),
    _histogram("request_choices", "model", "answers that a request asks for", FEW),
    _histogram("request_max_tokens", "model", "most tokens that a request asks for", TOKENS),
)
"""All metrics, in the order of the page."""

BY_NAME = {metric.name.removeprefix("vlmkit_"): metric for metric in METRICS}
"""Metrics by name without the prefix."""
