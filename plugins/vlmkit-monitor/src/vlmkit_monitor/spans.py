"""The observer that makes spans and numbers of OpenTelemetry from the ends of requests.

A span's times are those at which things happened, which are known when a request is over. Nothing
is said in a span of what was asked and answered.
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
from vlmkit_monitor import genai

IMAGE_INDEX = "vlmkit.image.index"
NANO = 1_000_000_000
_STAGES = ("fetch", "decode", "preprocess", "encode")
_PROPAGATOR = TraceContextTextMapPropagator()


def context_of(traceparent: str, tracestate: str = "") -> Context:
    """Return what a span belongs to; a trace of its own where the text is none."""
    return _PROPAGATOR.extract({"traceparent": traceparent, "tracestate": tracestate}, Context())


def traceparent_of(span: trace.Span) -> str:
    """Return what names a span to those who belong to it."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


class Numbers:
    """The histograms that the conventions name.

    Args:
        meter: makes them.
    """

    def __init__(self, meter: Meter) -> None:
        def histogram(name: str, unit: str, bounds: tuple[float, ...]) -> Any:
            return meter.create_histogram(
                name, unit=unit, explicit_bucket_boundaries_advisory=bounds
            )

        self._duration = histogram(genai.REQUEST_DURATION, "s", genai.DURATION_BOUNDS)
        self._first = histogram(genai.TIME_TO_FIRST_TOKEN, "s", genai.FIRST_TOKEN_BOUNDS)
        self._each = histogram(genai.TIME_PER_OUTPUT_TOKEN, "s", genai.OUTPUT_TOKEN_BOUNDS)
        self._usage = histogram(genai.TOKEN_USAGE, "{token}", genai.TOKEN_BOUNDS)

    def note(
        self, request: RequestFacts, end: RequestEnd, took_s: float, common: Mapping[str, Any]
    ) -> None:
        """Count a request that ended."""
        usage, timings = end.usage, end.timings
        self._duration.record(took_s, common)
        self._usage.record(usage.prompt_tokens, {**common, genai.TOKEN_TYPE: "input"})
        if "abort" in end.reasons or not usage.completion_tokens:
            return
        self._usage.record(usage.completion_tokens, {**common, genai.TOKEN_TYPE: "output"})
        first_s = timings.prompt_s + timings.queue_s + timings.first_token_s
        self._first.record(first_s, common)
        num_each = usage.completion_tokens / request.params.n
        if num_each > 1:
            self._each.record(timings.decode_s / (num_each - 1), common)

    def note_failure(self, took_s: float, common: Mapping[str, Any]) -> None:
        """Count a request that failed."""
        self._duration.record(took_s, common)


class SpanObserver(Observer):
    """Makes spans of the requests of one model.

    Args:
        tracer: makes them; None makes none.
        numbers: counts; None counts nothing.
    """

    def __init__(self, tracer: Tracer | None, numbers: Numbers | None) -> None:
        self._tracer = tracer
        self._numbers = numbers
        self._began_s: dict[RequestFacts, float] = {}

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        """Note when it began."""
        self._began_s[request] = at_s - request.prompt_s

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        """Make the request's span, and one for each stage of it."""
        began_s = self._began_s.pop(request, at_s)
        common = _common(request)
        if self._numbers is not None:
            self._numbers.note(request, end, at_s - began_s, common)
        if self._tracer is None:
            return
        timings = end.timings
        fetches = [image.fetch.began_s for image in timings.images if image.fetch.began_s]
        span = self._tracer.start_span(
            f"{common[genai.OPERATION]} {request.model}",
            context_of(request.trace),
            SpanKind.INTERNAL,
            start_time=_ns(min([timings.began_s or began_s, *fetches])),
        )
        if span.is_recording():
            span.set_attributes({**common, **_asked(request), **_took(request, end)})
            self._stages(self._tracer, span, timings)
        span.end(_ns(at_s))

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        """Make a span that says what kind of error it was; its words are the client's."""
        began_s = self._began_s.pop(request, at_s)
        common = {**_common(request), genai.ERROR_TYPE: type(error).__name__}
        if self._numbers is not None:
            self._numbers.note_failure(at_s - began_s, common)
        if self._tracer is None:
            return
        name = f"{common[genai.OPERATION]} {request.model}"
        span = self._tracer.start_span(
            name, context_of(request.trace), SpanKind.INTERNAL, start_time=_ns(began_s)
        )
        span.set_attributes({**common, **_asked(request)})
        span.set_status(Status(StatusCode.ERROR))
        span.end(_ns(at_s))

    def close(self) -> None:
        """Forget what did not end."""
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
    operation = genai.CHAT if request.is_chat else genai.TEXT_COMPLETION
    return {
        genai.OPERATION: genai.EMBEDDINGS if request.task == "embed" else operation,
        genai.PROVIDER: genai.PROVIDER_NAME,
        genai.REQUEST_MODEL: request.model,
        genai.RESPONSE_MODEL: request.model,
    }


def _asked(request: RequestFacts) -> dict[str, Any]:
    """Return how tokens were to be chosen; stop strings are the client's words."""
    params = request.params
    asked = {
        genai.TEMPERATURE: params.temperature,
        genai.TOP_P: params.top_p,
        genai.TOP_K: float(params.top_k),
        genai.FREQUENCY_PENALTY: params.frequency_penalty,
        genai.PRESENCE_PENALTY: params.presence_penalty,
        genai.MAX_TOKENS: params.max_tokens,
    }
    if params.n != 1:
        asked[genai.CHOICE_COUNT] = params.n
    return {name: value for name, value in asked.items() if value is not None}


def _took(request: RequestFacts, end: RequestEnd) -> dict[str, Any]:
    usage = end.usage
    took = {
        genai.RESPONSE_ID: request.id,
        genai.FINISH_REASONS: end.reasons,
        genai.INPUT_TOKENS: usage.prompt_tokens,
        genai.OUTPUT_TOKENS: usage.completion_tokens,
        genai.CACHED_TOKENS: usage.cached_tokens,
    }
    if usage.image_tokens:
        took[genai.IMAGE_TOKENS] = sum(usage.image_tokens)
    if usage.reasoning_tokens:
        took[genai.REASONING_TOKENS] = usage.reasoning_tokens
    return took
