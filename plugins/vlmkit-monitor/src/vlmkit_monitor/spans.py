"""The observer that creates spans and metrics of OpenTelemetry when requests end.

A span has the times at which its events happened, which are known when the request is over. Spans
hold nothing of prompts and answers.
"""

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import Meter
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts
from vlmkit.types.completion import Timings

# Names of OpenTelemetry's conventions for generative AI, as of November 2026: of
# open-telemetry/semantic-conventions-genai with the status "development". They may change, and then
# only here. Attributes with prompts or answers are left out on purpose.
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
CHOICE_COUNT = "gen_ai.request.choice.count"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
TOP_K = "gen_ai.request.top_k"
FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
IMAGE_TOKENS = "gen_ai.usage.image.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - no secret
ERROR_TYPE = "error.type"

PROVIDER_NAME = "vlmkit"
CHAT, TEXT_COMPLETION, EMBEDDINGS = "chat", "text_completion", "embeddings"

REQUEST_DURATION = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"  # noqa: S105
TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"  # noqa: S105
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105

DURATION_BOUNDS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
OUTPUT_TOKEN_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
TOKEN_BOUNDS = tuple(float(4**power) for power in range(14))

IMAGE_INDEX = "vlmkit.image.index"
NANO = 1_000_000_000
_STAGES = ("fetch", "decode", "preprocess", "encode")
_PROPAGATOR = TraceContextTextMapPropagator()


def context_of(traceparent: str, tracestate: str = "") -> Context:
    """Return the parent context of a span; a new trace if the text is no traceparent."""
    return _PROPAGATOR.extract({"traceparent": traceparent, "tracestate": tracestate}, Context())


def traceparent_of(span: trace.Span) -> str:
    """Return the traceparent of a span, for its children."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


class RequestMetrics:
    """The histograms that OpenTelemetry's conventions define.

    Args:
        meter: creates them.
    """

    def __init__(self, meter: Meter) -> None:
        def histogram(name: str, unit: str, bounds: tuple[float, ...]) -> Any:
            return meter.create_histogram(
                name, unit=unit, explicit_bucket_boundaries_advisory=bounds
            )

        self._duration = histogram(REQUEST_DURATION, "s", DURATION_BOUNDS)
        self._first = histogram(TIME_TO_FIRST_TOKEN, "s", FIRST_TOKEN_BOUNDS)
        self._each = histogram(TIME_PER_OUTPUT_TOKEN, "s", OUTPUT_TOKEN_BOUNDS)
        self._usage = histogram(TOKEN_USAGE, "{token}", TOKEN_BOUNDS)

    def record(
        self, request: RequestFacts, end: RequestEnd, took_s: float, common: Mapping[str, Any]
    ) -> None:
        """Record a finished request."""
        usage, timings = end.usage, end.timings
        self._duration.record(took_s, common)
        self._usage.record(usage.prompt_tokens, {**common, TOKEN_TYPE: "input"})
        if "abort" in end.reasons or not usage.completion_tokens:
            return
        self._usage.record(usage.completion_tokens, {**common, TOKEN_TYPE: "output"})
        first_s = timings.prompt_s + timings.queue_s + timings.first_token_s
        self._first.record(first_s, common)
        num_each = usage.completion_tokens / request.params.n
        if num_each > 1:
            self._each.record(timings.decode_s / (num_each - 1), common)

    def record_failure(self, took_s: float, common: Mapping[str, Any]) -> None:
        """Record a failed request."""
        self._duration.record(took_s, common)


class SpanObserver(Observer):
    """Creates spans of the requests of one model.

    Args:
        tracer: creates them; None creates none.
        metrics: records metrics; None records none.
    """

    def __init__(self, tracer: Tracer | None, metrics: RequestMetrics | None) -> None:
        self._tracer = tracer
        self._metrics = metrics
        self._began_s: dict[RequestFacts, float] = {}

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        """Remember when the request started."""
        self._began_s[request] = at_s - request.prompt_s

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        """Create the span of a request and of each of its stages."""
        began_s = self._began_s.pop(request, at_s)
        common = _common(request)
        if self._metrics is not None:
            self._metrics.record(request, end, at_s - began_s, common)
        if self._tracer is None:
            return
        timings = end.timings
        fetches = [image.fetch.began_s for image in timings.images if image.fetch.began_s]
        span = self._tracer.start_span(
            f"{common[OPERATION]} {request.model}",
            context_of(request.trace),
            SpanKind.INTERNAL,
            start_time=_ns(min([timings.began_s or began_s, *fetches])),
        )
        if span.is_recording():
            span.set_attributes(
                {**common, **_sampling_attributes(request), **_result_attributes(request, end)}
            )
            self._stages(self._tracer, span, timings)
        span.end(_ns(at_s))

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        """Create a span with the kind of an error, not its text, which may quote the client."""
        began_s = self._began_s.pop(request, at_s)
        common = {**_common(request), ERROR_TYPE: type(error).__name__}
        if self._metrics is not None:
            self._metrics.record_failure(at_s - began_s, common)
        if self._tracer is None:
            return
        name = f"{common[OPERATION]} {request.model}"
        span = self._tracer.start_span(
            name, context_of(request.trace), SpanKind.INTERNAL, start_time=_ns(began_s)
        )
        span.set_attributes({**common, **_sampling_attributes(request)})
        span.set_status(Status(StatusCode.ERROR))
        span.end(_ns(at_s))

    def close(self) -> None:
        """Forget unfinished requests."""
        self._began_s.clear()

    def _stages(self, tracer: Tracer, parent: trace.Span, timings: Timings) -> None:
        context = trace.set_span_in_context(parent, Context())
        at_s = timings.began_s
        for name, took_s in (
            ("prepare", timings.prompt_s),
            ("queue", timings.queue_s),
            ("prefill", timings.first_token_s),
            ("decode", timings.decode_s),
        ):
            if took_s:
                span = tracer.start_span(name, context, start_time=_ns(at_s))
                span.end(_ns(at_s + took_s))
            at_s += took_s
        for index, image in enumerate(timings.images):
            for name in _STAGES:
                stage = getattr(image, name)
                if stage.began_s:
                    span = tracer.start_span(
                        f"{name} image",
                        context,
                        attributes={IMAGE_INDEX: index},
                        start_time=_ns(stage.began_s),
                    )
                    span.end(_ns(stage.began_s + stage.took_s))


def _ns(at_s: float) -> int:
    return int(at_s * NANO)


def _common(request: RequestFacts) -> dict[str, Any]:
    operation = CHAT if request.is_chat else TEXT_COMPLETION
    return {
        OPERATION: EMBEDDINGS if request.task == "embed" else operation,
        PROVIDER: PROVIDER_NAME,
        REQUEST_MODEL: request.model,
        RESPONSE_MODEL: request.model,
    }


def _sampling_attributes(request: RequestFacts) -> dict[str, Any]:
    """Return the sampling parameters, except stop strings, which are client text."""
    params = request.params
    attributes = {
        TEMPERATURE: params.temperature,
        TOP_P: params.top_p,
        TOP_K: float(params.top_k),
        FREQUENCY_PENALTY: params.frequency_penalty,
        PRESENCE_PENALTY: params.presence_penalty,
        MAX_TOKENS: params.max_tokens,
    }
    if params.n != 1:
        attributes[CHOICE_COUNT] = params.n
    return {name: value for name, value in attributes.items() if value is not None}


def _result_attributes(request: RequestFacts, end: RequestEnd) -> dict[str, Any]:
    usage = end.usage
    attributes = {
        RESPONSE_ID: request.id,
        FINISH_REASONS: end.reasons,
        INPUT_TOKENS: usage.prompt_tokens,
        OUTPUT_TOKENS: usage.completion_tokens,
        CACHED_TOKENS: usage.cached_tokens,
    }
    if usage.image_tokens:
        attributes[IMAGE_TOKENS] = sum(usage.image_tokens)
    if usage.reasoning_tokens:
        attributes[REASONING_TOKENS] = usage.reasoning_tokens
    return attributes
