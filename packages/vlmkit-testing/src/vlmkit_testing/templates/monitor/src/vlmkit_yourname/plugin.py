"""Counts requests by route and status, and shows them at ``/metrics`` as JSON."""

import threading
from dataclasses import dataclass

import msgspec

import vlmkit
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, Monitor, Page, ServerState

VLMKIT_API = (1, 0)


@dataclass
class _Seen:
    """Requests of one route that had one status."""

    num_requests: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


class JsonMonitor(Monitor):
    """Counts what was answered; keeps a few numbers for each route, and no request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # pages are made in a thread of their own
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._longest_lag_s = 0.0

    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        """Count a request; a route is one of the server's own, so there are few."""
        with self._lock:
            seen = self._seen.setdefault((end.route, end.status), _Seen())
            seen.num_requests += 1
            seen.total_s += end.took_s
            seen.longest_s = max(seen.longest_s, end.took_s)

    def lagged(self, lag_s: float) -> None:
        """Keep how late the event loop was at worst."""
        self._longest_lag_s = max(self._longest_lag_s, lag_s)

    def page(self, state: ServerState, accept: str) -> Page | None:
        """Return the numbers as JSON."""
        with self._lock:
            routes = [
                {
                    "route": route or "(none)",
                    "status": status,
                    "num_requests": seen.num_requests,
                    "mean_s": seen.total_s / seen.num_requests,
                    "longest_s": seen.longest_s,
                }
                for (route, status), seen in sorted(self._seen.items())
            ]
        content = {
            "status": state.status,
            "num_open": state.num_open,
            "models": {model.name: model.state for model in state.models},
            "longest_lag_s": self._longest_lag_s,
            "routes": routes,
        }
        return Page(msgspec.json.encode(content), "application/json")


def _build(_: BuildContext) -> Monitor:
    return JsonMonitor()


@vlmkit.hookimpl
def vlmkit_register_monitors(registry: Registry[Monitor]) -> None:
    """Offer ``monitors.use = ["yourname"]``."""
    registry.add("yourname", _build, description="requests by route and status, as JSON")
