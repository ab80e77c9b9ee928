"""The monitor that sends traces and metrics to a collector, with OpenTelemetry's SDK.

The standard ``OTEL_`` variables set target, interval and sampling; the protocol is OTLP over HTTP.
Threads of the SDK send the data. Data that cannot be sent is dropped.
"""

import os
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from vlmkit.errors import ConfigError
from vlmkit.interfaces.observer import Observer
from vlmkit_monitor.settings import OtlpSettings
from vlmkit_monitor.spans import NANO, RequestMetrics, SpanObserver, context_of, traceparent_of
from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, Monitor

NAME = "vlmkit"
UNTRACED_ROUTES = frozenset({"/healthz", "/health", "/ping", "/readyz", "/version", "/metrics"})
"""Routes that are polled, and that get no traces."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class OtlpMonitor(Monitor):
    """Sends a trace of each sampled request, and metrics of all requests.

    Args:
        settings: None for the defaults.

    Raises:
        ConfigError: the environment sets an unsupported protocol.
    """

    def __init__(self, settings: OtlpSettings | None = None) -> None:
        settings = settings or OtlpSettings()
        _check_protocol()
        resource, own = _resource(), version("vlmkit-monitor")
        self._tracers = self._meters = None
        if settings.traces:
            self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        if settings.metrics:
            reader = PeriodicExportingMetricReader(OTLPMetricExporter())
            self._meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._tracer = self._tracers.get_tracer(NAME, own) if self._tracers else None
        meter = self._meters.get_meter(NAME, own) if self._meters else None
        self._metrics = RequestMetrics(meter) if meter else None
        self._open: dict[HttpRequest, Span] = {}

    def observer(self, model: str) -> Observer:  # noqa: ARG002 - each request has its model
        """Return an observer that creates spans of a model's requests."""
        return SpanObserver(self._tracer, self._metrics)

    def began(self, request: HttpRequest) -> str:
        """Start the span of a request, in the client's trace if it sent one."""
        if self._tracer is None:
            return ""
        span = self._tracer.start_span(
            _method(request),
            context_of(request.traceparent, request.tracestate),
            SpanKind.SERVER,
            start_time=int(request.at_s * NANO),
        )
        self._open[request] = span
        return traceparent_of(span)

    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        """End the span of a request, unless its route is untraced."""
        span = self._open.pop(request, None)
        if span is None or end.route in UNTRACED_ROUTES:
            return
        method = _method(request)
        span.update_name(f"{method} {end.route}" if end.route else method)
        span.set_attribute("http.request.method", method)
        span.set_attribute("http.response.status_code", end.status)
        if end.route:
            span.set_attribute("http.route", end.route)
        if end.code:
            span.set_attribute("error.type", end.code)
        if end.status >= 500 or (end.code and end.status < 400):
            span.set_status(Status(StatusCode.ERROR))
        span.end(int((request.at_s + end.took_s) * NANO))

    def close(self) -> None:
        """Send the remaining data."""
        self._open.clear()
        tracers, self._tracers = self._tracers, None
        meters, self._meters = self._meters, None
        if tracers is not None:
            tracers.shutdown()
        if meters is not None:
            meters.shutdown()


def _method(request: HttpRequest) -> str:
    return request.method if request.method in _METHODS else "_OTHER"


def _resource() -> Resource:
    """Return the service that sends: from the environment, or vlmkit."""
    stated = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if os.environ.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in stated:
        return Resource.create()
    return Resource.create({SERVICE_NAME: NAME})


def _check_protocol() -> None:
    names = ("", "_TRACES", "_METRICS")
    for name in (f"OTEL_EXPORTER_OTLP{each}_PROTOCOL" for each in names):
        if os.environ.get(name, "http/protobuf") != "http/protobuf":
            raise ConfigError(
                f"{name} is {os.environ[name]!r}: the monitor 'otlp' speaks http/protobuf",
                hint="collectors take that at port 4318",
            )
