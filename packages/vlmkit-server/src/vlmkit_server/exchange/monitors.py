"""Tells monitors how the server fares, so that none of them can harm a request.

One that raises is switched off and told of in the log, once. Without monitors nothing is noted and
no clock runs. Is used in the event loop's thread, but where it says otherwise.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from litestar.types import HTTPScope

from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, Monitor, Page, ServerState

log = logging.getLogger(__name__)

T = TypeVar("T")

LAG_PERIOD_S = 0.1
MAX_TRACE_CHARS = 512  # of a header; what W3C Trace Context wants to be handed on at least


class Monitors:
    """All monitors of a server.

    Args:
        monitors: each by its name.
        component_names: who made them.
    """

    def __init__(
        self, monitors: Mapping[str, Monitor], component_names: ComponentNames = UNKNOWN
    ) -> None:
        self._component_names = component_names
        self._all = dict(monitors)
        self._monitors = dict(monitors)  # those that are not switched off
        self._lag: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._all)

    async def start(self) -> None:
        """Begin to watch the event loop, if anybody listens."""
        if self._all:
            self._lag = asyncio.ensure_future(self._watch_lag())

    async def stop(self) -> None:
        """Watch no more."""
        if self._lag is not None:
            self._lag.cancel()

    def began(self, scope: HTTPScope, request_id: str) -> HttpRequest | None:
        """Tell of a request, and note whose trace it belongs to; None where nobody listens."""
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
        traces = self._ask(lambda monitor: monitor.began(request))
        scope["state"]["trace"] = next(filter(None, traces), "")
        return request

    def ended(self, request: HttpRequest, scope: HTTPScope, status: int) -> None:
        """Tell how a request was answered."""
        end = HttpEnd(
            scope.get("path_template", ""),
            status,
            scope["state"].get("error", ""),
            max(0.0, time.time() - request.at_s),
        )
        self._ask(lambda monitor: monitor.ended(request, end))

    def page(self, state: ServerState, accept: str) -> Page | None:
        """Return what the first monitor shows that shows anything; called in another thread."""
        pages = self._ask(lambda monitor: monitor.page(state, accept))
        return next((page for page in pages if page is not None), None)

    def close(self) -> None:
        """Close all; nothing may be told any more."""
        self._monitors = dict(self._all)
        self._ask(lambda monitor: monitor.close())
        self._monitors = {}

    def _ask(self, question: Callable[[Monitor], T]) -> list[T]:
        answers = []
        for name, monitor in tuple(self._monitors.items()):
            try:
                answers.append(question(monitor))
            except Exception:
                who = self._component_names.of("monitor", name)
                log.exception("%s failed and is switched off", who)
                self._monitors.pop(name, None)
        return answers

    async def _watch_lag(self) -> None:
        now: Callable[[], Any] = asyncio.get_running_loop().time
        while self._monitors:
            due_s = now() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            lag_s = max(0.0, now() - due_s)
            self._ask(lambda monitor, lag_s=lag_s: monitor.lagged(lag_s))  # type: ignore[misc]


def _text(header: bytes) -> str:
    return header.decode("latin-1") if len(header) <= MAX_TRACE_CHARS else ""
