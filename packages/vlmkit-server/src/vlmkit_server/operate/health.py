"""Health routes: liveness, readiness and version.

``/healthz``, also ``/health`` and ``/ping``: the process responds, and no engine failed for good.
``/readyz``: whether it accepts work, or why not. ``/version``: its version.
"""

from typing import Any, Literal

import msgspec
from litestar import Controller, Request, Response, route
from litestar.di import NamedDependency

from vlmkit._version import __version__
from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet.model_handle import ModelHandle, State
from vlmkit_server.http.caller import Caller, caller_of
from vlmkit_server.http.errors import RETRY_AFTER_S, waiting_s
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation

Status = Literal["ready", "loading", "failed", "full", "draining"]


class Health(msgspec.Struct):
    """Whether the process is healthy, or must be restarted."""

    status: Literal["ok", "failed"] = "ok"


class ModelReadiness(msgspec.Struct):
    """The state, load and memory size of one model.

    Null values cover all clients, and are hidden from this caller.
    """

    state: State
    load_s: float
    num_running: int | None
    num_waiting: int | None
    num_waiting_for_load: int | None
    memory_bytes: int | None


class ResourceUse(msgspec.Struct):
    """The use of one resource.

    Attributes:
        held: by the caller.
        total: by all callers; null if hidden from this caller.
        most: the limit.
    """

    held: int
    total: int | None
    most: int


class Readiness(msgspec.Struct):
    """Whether the server accepts work from the caller, why not, and what is in progress.

    Attributes:
        resources: the use of each resource, by name.
        num_ignored: requests with ignored fields, by field; null if hidden from this caller.
        num_unconstrained: requests whose schemas are not enforced completely; likewise.
    """

    status: Status
    models: dict[str, ModelReadiness]
    resources: dict[str, ResourceUse]
    num_ignored: dict[str, int] | None
    num_unconstrained: int | None


class Version(msgspec.Struct):
    """The version of the server."""

    version: str


_READINESS = Operation(Readiness, unready=Readiness, access="key")


class HealthController(Controller):
    """Health, for load balancers and supervisors."""

    @route(
        ["/healthz", "/health", "/ping"],
        http_method=READ,
        operation=Operation(Health, unready=Health, access="open"),
    )
    async def health(self, service: NamedDependency[Service]) -> Response[Health]:
        """Return 200, or 503 if an engine failed for good."""
        if any(model.needs_new_process for model in service.models.values()):
            return Response(Health("failed"), status_code=503)
        return Response(Health())

    @route("/readyz", http_method=READ, operation=_READINESS)
    async def readiness(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> Response[Readiness]:
        """Return 200 if the server accepts work, otherwise 503 with Retry-After."""
        caller = caller_of(request)
        status = readiness_of(service, caller.account)
        body = _readiness(status, service, caller)
        if status == "ready":
            return Response(body)
        match status:
            case "full":  # a probe reserves no slot
                retry_after_s = service.admission.retry_after_s(caller.account, is_reserved=False)
            case "draining":
                retry_after_s = service.admission.closing().retry_after_s
            case "loading":
                retry_after_s = waiting_s(service.registry.ready_in_s)
            case _:
                retry_after_s = RETRY_AFTER_S
        return Response(body, status_code=503, headers={"retry-after": str(retry_after_s)})

    @route("/version", http_method=READ, operation=Operation(Version, access="key"))
    async def version(self) -> Version:
        """Return the version."""
        return Version(__version__)


def readiness_of(service: Service, account: str) -> Status:
    """Return the state of the server for a tenant or client network."""
    if service.admission.is_draining:
        return "draining"
    if service.registry.has_failed:
        return "failed"
    if service.registry.is_starting:
        return "loading"
    return "full" if service.admission.is_full(account) else "ready"


def _readiness(status: Status, service: Service, caller: Caller) -> Readiness:
    """Return the readiness, without what is hidden from the caller."""
    is_shown = caller.is_operator
    uses = service.admission.limits.uses(caller.account).items()
    return Readiness(
        status,
        {name: _model(model, is_shown=is_shown) for name, model in service.models.items()},
        {n: ResourceUse(u.held, u.total if is_shown else None, u.most) for n, u in uses},
        dict(service.num_ignored) if is_shown else None,
        service.num_unenforced if is_shown else None,
    )


def _model(model: ModelHandle, *, is_shown: bool) -> ModelReadiness:
    load_s = round(model.load_s, 3)
    if not is_shown:
        return ModelReadiness(model.state, load_s, None, None, None, None)
    num_running = num_waiting = 0
    if model.runner is not None:
        stats = model.runner.stats()
        num_running, num_waiting = stats.num_running, stats.num_waiting
    return ModelReadiness(
        model.state, load_s, num_running, num_waiting, model.num_waiting, model.memory_bytes
    )
