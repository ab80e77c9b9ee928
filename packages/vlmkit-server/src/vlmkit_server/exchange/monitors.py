"""Calls monitors with the server's events, so that a monitor cannot harm a request.

A monitor that raises is disabled and logged, once. Without monitors, nothing is recorded and no
timer runs. It is used in the event loop's thread unless stated otherwise.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from litestar.types import HTTPScope

from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, Monitor, Page, ServerState

log = logging.getLogger(__name__)

LAG_PERIOD_S = 0.1
MAX_TRACE_CHARS = 512  # of a header; the least that W3C Trace Context wants propagated


class Monitors:
    """All monitors of a server.

    Args:
        monitors: each by its name.
        component_names: names the component that provides each monitor.
    """

    def __init__(
        self, monitors: Mapping[str, Monitor], component_names: ComponentNames = UNKNOWN
    ) -> None:
        self._component_names = component_names
        self._all = dict(monitors)
        self._monitors = dict(monitors)  # those that are enabled
        self._lag: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._all)

    async def start(self) -> None:
        """Start to measure the event loop's lag, if there is a monitor."""
        if self._all:
            self._lag = asyncio.ensure_future(self._watch_lag())

    async def stop(self) -> None:
        """Stop measuring."""
        if self._lag is not None:
            self._lag.cancel()

    def began(self, scope: HTTPScope, request_id: str) -> HttpRequest | None:
        """Report a new request and store its trace; None without monitors."""
        if not self._monitors:
            return None
        headers = dict(scope["headers"])
        request = HttpRequest(
            request_id,
            scope["method"],
            time.time(),
            _text(headers.get(b"traceparent", b"")),
            _text(headers.get(b"tracestate", b"")),
        )
        scope["state"]["began"] = time.perf_counter()
        traces = self._call("began", request)
        scope["state"]["trace"] = next(filter(None, traces), "")
        return request

    def ended(self, request: HttpRequest, scope: HTTPScope, status: int) -> None:
        """Report how a request was answered."""
        end = HttpEnd(
            scope.get("path_template", ""),
            status,
            scope["state"].get("error", ""),
            time.perf_counter() - scope["state"]["began"],
        )
        self._call("ended", request, end)

    def page(self, state: ServerState, accept: str) -> Page | None:
        """Return the first page that a monitor provides; called in another thread."""
        pages = self._call("page", state, accept)
        return next((page for page in pages if page is not None), None)

    def close(self) -> None:
        """Close all monitors; later calls do nothing."""
        self._monitors = dict(self._all)
        self._call("close")
        self._monitors = {}

    def _call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every enabled monitor that implements it, and return the results."""
        answers = []
        for name, monitor in tuple(self._monitors.items()):
            if getattr(type(monitor), method, None) is getattr(Monitor, method):
                continue
            try:
                answers.append(getattr(monitor, method)(*args))
            except Exception:
                component = self._component_names.of("monitor", name)
                log.exception("%s failed and is disabled", component)
                self._monitors.pop(name, None)
        return answers

    async def _watch_lag(self) -> None:
        now: Callable[[], Any] = asyncio.get_running_loop().time
        while self._monitors:
            due_s = now() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            lag_s = max(0.0, now() - due_s)
            self._call("lagged", lag_s)


def _text(header: bytes) -> str:
    return header.decode("latin-1") if len(header) <= MAX_TRACE_CHARS else ""
