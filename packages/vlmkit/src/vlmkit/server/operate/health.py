"""Whether this process is of use, and whether it takes work now.

``/healthz``, which others call ``/health`` or ``/ping``: it answers, and none of its engines failed
for good. ``/readyz``: it takes work, or says what it waits for. ``/version``: what it is.
"""

from typing import Literal

import msgspec
from litestar import Controller, Response, route
from litestar.di import NamedDependency

from vlmkit._version import __version__
from vlmkit.server.fleet.served_model import ServedModel, State
from vlmkit.server.http.errors import RETRY_AFTER_S
from vlmkit.server.http.methods import READ
from vlmkit.server.http.operation import Operation
from vlmkit.server.work.service import Service

Status = Literal["ready", "loading", "failed", "full", "draining"]


class Health(msgspec.Struct):
    """Whether the process can go on, or must be started again."""

    status: Literal["ok", "failed"] = "ok"


class ModelReadiness(msgspec.Struct):
    """How far one model is, how busy, and what it counts for in the memory budget."""

    state: State
    load_s: float
    num_running: int
    num_waiting: int
    num_waiting_for_load: int
    memory_bytes: int | None


class Readiness(msgspec.Struct):
    """Whether new work is taken, and why not; and how many requests had less than they asked for.

    Attributes:
        num_ignored: requests with keys that were ignored, by key.
        num_unconstrained: requests with tools to whose schemas nothing here keeps.
    """

    status: Status
    models: dict[str, ModelReadiness]
    num_ignored: dict[str, int]
    num_unconstrained: int


class Version(msgspec.Struct):
    """What this server is a version of."""

    version: str


_READINESS = Operation(Readiness, unready=Readiness, access="key")


class HealthController(Controller):
    """For load balancers and supervisors."""

    @route(
        ["/healthz", "/health", "/ping"],
        http_method=READ,
        operation=Operation(Health, unready=Health, access="open"),
    )
    async def health(self, service: NamedDependency[Service]) -> Response[Health]:
        """Answer 200, or 503 if an engine failed for good."""
        if any(model.is_dead for model in service.models.values()):
            return Response(Health("failed"), status_code=503)
        return Response(Health())

    @route("/readyz", http_method=READ, operation=_READINESS)
    async def readiness(self, service: NamedDependency[Service]) -> Response[Readiness]:
        """Answer 200 if new work is taken, or else 503 and when to ask again."""
        status = readiness_of(service)
        models = {name: _readiness(model) for name, model in service.models.items()}
        body = Readiness(status, models, dict(service.num_ignored), service.num_unconstrained)
        if status == "ready":
            return Response(body)
        return Response(body, status_code=503, headers={"retry-after": str(RETRY_AFTER_S)})

    @route("/version", http_method=READ, operation=Operation(Version, access="key"))
    async def version(self) -> Version:
        """Tell the version, whatever else is the matter."""
        return Version(__version__)


def readiness_of(service: Service) -> Status:
    """Return the first reason not to send work here."""
    if service.is_draining:
        return "draining"
    if service.roster.has_failed:
        return "failed"
    if service.roster.is_starting:
        return "loading"
    return "full" if service.is_full else "ready"


def _readiness(model: ServedModel) -> ModelReadiness:
    num_running = num_waiting = 0
    if model.runner is not None:
        stats = model.runner.stats()
        num_running, num_waiting = stats.num_running, stats.num_waiting
    return ModelReadiness(
        model.state,
        round(model.load_s, 3),
        num_running,
        num_waiting,
        model.num_waiting,
        model.memory_bytes,
    )
