"""The monitor behind ``/metrics``, with the Prometheus client library.

Tallies hold the counts and are read on each request; nothing else happens in between.
"""

import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from vlmkit.interfaces.observer import Observer
from vlmkit_monitor.families import Families
from vlmkit_monitor.request_tally import RequestTally
from vlmkit_monitor.settings import PrometheusSettings
from vlmkit_monitor.tally import Tally
from vlmkit_monitor.vllm_names import vllm_families
from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, Monitor, Page, ServerState

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_CODES = 256  # a bound for the values of a label; there are far fewer codes
OTHER = "other"


class PrometheusMonitor(Monitor):
    """Counts the requests of a server and its models.

    Args:
        settings: None for the defaults.
    """

    def __init__(self, settings: PrometheusSettings | None = None) -> None:
        self._settings = settings or PrometheusSettings()
        self._http = Tally()
        self._codes: set[str] = set()
        self._lag = self._http.histogram("event_loop_lag_seconds")
        self._lock = threading.Lock()
        self._observers: dict[str, list[RequestTally]] = {}
        self._past: dict[str, Tally] = {}  # of closed observers
        self._process = ProcessCollector(registry=None)

    def observer(self, model: str) -> Observer:
        """Return an observer that counts the requests of a model."""
        made = RequestTally(Tally())
        with self._lock:
            self._fold(model)
            self._observers.setdefault(model, []).append(made)
        return made

    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        """Count an answer."""
        method = request.method if request.method in _METHODS else OTHER
        self._http.count("http_requests_total", method, end.route or "none", str(end.status))
        self._http.histogram("http_request_seconds", end.route or "none").add(end.took_s)
        if end.code:
            if len(self._codes) < MAX_CODES:
                self._codes.add(end.code)
            self._http.count("refusals_total", end.code if end.code in self._codes else OTHER)

    def lagged(self, lag_s: float) -> None:
        """Count a delay of the event loop."""
        self._lag.add(lag_s)

    def page(self, state: ServerState, accept: str) -> Page:
        """Return all metrics in the format that the client prefers."""
        encode, media_type = choose_encoder(accept)
        registry = CollectorRegistry()
        registry.register(_FixedCollector(self._families(state)))
        registry.register(self._process)
        return Page(encode(registry), media_type)

    def _families(self, state: ServerState) -> list[Metric]:
        families, tallies = Families(), self._tallies()
        families.add_state(state)
        families.add_tally(self._http)
        for model, tally in tallies.items():
            families.add_tally(tally, model)
        if not self._settings.vllm_names:
            return list(families)
        return [*families, *vllm_families(state, tallies, self._http)]

    def _tallies(self) -> dict[str, Tally]:
        """Return the totals of each model."""
        found: dict[str, Tally] = {}
        with self._lock:
            for model, observers in self._observers.items():
                found[model] = whole = Tally()
                if model in self._past:
                    whole.merge(self._past[model])
                for observer in observers:
                    whole.merge(observer.tally)
        return found

    def _fold(self, model: str) -> None:
        """Merge the tallies of closed observers."""
        observers = self._observers.get(model, [])
        for observer in [each for each in observers if each.is_closed]:
            self._past.setdefault(model, Tally()).merge(observer.tally)
            observers.remove(observer)


class _FixedCollector(Collector):
    """Exposes finished families."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have a series."""
        return (family for family in self._families if family.samples)
