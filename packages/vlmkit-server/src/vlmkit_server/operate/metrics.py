"""``GET /metrics``: the page of a monitor, such as Prometheus metrics.

The page is written outside the event loop, one at a time. The event loop only reads the server's
state: a few dozen attributes for each model.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from litestar import Controller, Request, Response, route
from litestar.di import NamedDependency

from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.http.errors import NotStored, Overloaded
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.interfaces.monitor import ModelState, Page, ServerState
from vlmkit_server.operate.health import readiness_of

MAX_WAITING = 16  # scrapes at once; a page takes milliseconds


class Scraper:
    """Writes metrics pages, one after the other."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._thread = ThreadPoolExecutor(1, "vlmkit-metrics")
        self._num_waiting = 0

    async def page(self, accept: str) -> Page:
        """Return the page.

        Raises:
            Overloaded: too many pages are requested at once.
            NotStored: no monitor provides a page.
        """
        if self._num_waiting >= MAX_WAITING:
            raise Overloaded("too many scrapes are under way", hint="try again later")
        work = partial(self._service.monitors.page, state_of(self._service), accept)
        self._num_waiting += 1
        try:
            page = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._num_waiting -= 1
        if page is None:
            raise NotStored("no monitor shows numbers here", code="not_found")
        return page

    async def close(self) -> None:
        """Stop writing pages."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class MetricsController(Controller):
    """Metrics, for Prometheus and similar programs."""

    @route("/metrics", http_method=READ, operation=Operation(bytes, access="metrics"))
    async def metrics(
        self, request: Request[Any, Any, Any], scraper: NamedDependency[Scraper]
    ) -> Response[bytes]:
        """Return all metrics."""
        page = await scraper.page(request.headers.get("accept", ""))
        return Response(page.content, headers={"content-type": page.media_type})


def state_of(service: Service) -> ServerState:
    """Return the state of a server; must be called in its event loop."""
    return ServerState(
        status=readiness_of(service, ""),
        models=tuple(_state_of(model) for model in service.models.values()),
        num_open=service.admission.num_open,
        resources={
            n: (quota.num_held, quota.limit) for n, quota in service.admission.limits.quotas.items()
        },
        num_ignored=dict(service.num_ignored),
        num_unconstrained=service.num_unenforced,
    )


def _state_of(model: ModelHandle) -> ModelState:
    return ModelState(
        name=model.name,
        state=model.state,
        changes=dict(model.changes),
        load_s=model.load_s,
        num_users=model.num_users,
        num_waiting=model.num_waiting,
        memory_bytes=model.memory_bytes,
        capacity_tokens=model.facts.limits.capacity_tokens if model.facts else 0,
        counters=model.counters(),
        stats=model.runner.stats() if model.runner else None,
    )
