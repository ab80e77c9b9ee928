"""A local OTLP collector that stores the messages that it receives."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """The received messages.

    Attributes:
        url: the address of the collector.
        bodies: the message bodies, in order of arrival.
    """

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.traces: list[Any] = []
        self.metrics: list[Any] = []
        self.resources: list[dict[str, Any]] = []

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/traces":
            sent = ExportTraceServiceRequest.FromString(body)
            for group in sent.resource_spans:
                self.resources.append(attributes(group.resource))
                self.traces += [span for scope in group.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            found = ExportMetricsServiceRequest.FromString(body)
            for each in found.resource_metrics:
                self.metrics += [m for scope in each.scope_metrics for m in scope.metrics]

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.traces if span.name == name]


def attributes(of: Any) -> dict[str, Any]:
    found = {}
    for each in of.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        if kind == "array_value":
            value = [one.string_value for one in value.values]
        found[each.key] = value
    return found


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
