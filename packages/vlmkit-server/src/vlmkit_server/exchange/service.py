"""The state that all routes share: the models, the resource limits and the requests in progress.

It is used in the event loop's thread.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from litestar.datastructures import Headers

from vlmkit.errors import RequestError
from vlmkit.interfaces.request_field import FieldFacts
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.settings.fetch import FetchSettings
from vlmkit_server.auth.key_ring import key_ring
from vlmkit_server.exchange.active_requests import ActiveRequests
from vlmkit_server.exchange.bodies import Bodies
from vlmkit_server.exchange.monitors import Monitors
from vlmkit_server.exchange.offload import OffloadExecutor
from vlmkit_server.exchange.resource_limits import ResourceLimits
from vlmkit_server.fleet.fleet import Fleet
from vlmkit_server.fleet.model_handle import State
from vlmkit_server.fleet.model_registry import ModelRegistry
from vlmkit_server.fleet.model_spec import Loader, ModelSpec, Servable, runner_of
from vlmkit_server.http.errors import Unavailable, waiting_s
from vlmkit_server.http.quota import Permit
from vlmkit_server.interfaces.monitor import Monitor
from vlmkit_server.logs.audit import AuditLog
from vlmkit_server.logs.line_file import BufferedLineFile
from vlmkit_server.rate_limits.tenants import TenantUsages
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.tools.toolbox import Toolbox
from vlmkit_server.wire.ignored import (
    HEADER,
    STRICT_HEADER,
    counter_names,
    header_value,
    unknown,
)

log = logging.getLogger(__name__)

KnownFields = Mapping[str, tuple[FieldFacts, ...]]
"""Fields that plugins add, by name: the facts of each component that accepts the field."""

T = TypeVar("T")


class Service:
    """The shared state of a server, and whether it accepts work.

    Args:
        models: by served name: a runner, a model, a function that loads one, or a spec; None where
            other code adds the runner later.
        settings: the server's settings.
        toolbox: the tools that the server runs; none when None.
        monitors: the monitors, each by its name.
        request_fields: fields that plugins add to requests and that are known before models are
            loaded; those of loaded models are added.
        component_names: names the component that provides each monitor.
        fetch: whether images named by URL are fetched; none are when None.

    Raises:
        ConfigError: two models share a name, they exceed the memory budget, or the key file or
            another file that the settings name cannot be used.
    """

    def __init__(
        self,
        models: Mapping[str, ModelSpec | Servable | Loader | None],
        settings: ServerSettings,
        toolbox: Toolbox | None = None,
        monitors: Mapping[str, Monitor] = MappingProxyType({}),
        request_fields: KnownFields = MappingProxyType({}),
        component_names: ComponentNames = UNKNOWN,
        fetch: FetchSettings | None = None,
    ) -> None:
        self.request_fields = dict(request_fields)
        specs = {name: _spec(given) for name, given in models.items()}
        self.registry = ModelRegistry(specs, settings.fleet)
        self.models = self.registry.models
        self.fleet = Fleet(self.registry, settings.fleet, max(1, settings.max_requests // 2))
        self.audit = AuditLog(settings.audit_log)
        for model in self.models.values():
            model.on_state = self._log_state
        for name, given in models.items():
            if isinstance(given, Servable):
                self.fleet.add(self.models[name], runner_of(given))
                for field, facts in runner_of(given).facts.request_fields.items():
                    known = self.request_fields.get(field, ())
                    if facts not in known:
                        self.request_fields[field] = (*known, facts)
        self.settings = settings
        self.fetch = fetch or FetchSettings()
        self.keys = key_ring(settings)
        self.tenant_usages = TenantUsages(settings.limits)
        self.access_log = (
            BufferedLineFile(settings.access_log, "server.access_log")
            if settings.access_log
            else None
        )
        self.toolbox = toolbox or Toolbox()
        self.monitors = Monitors(monitors, component_names)
        self.is_draining = False
        self._drained_s: float | None = None  # the deadline of the drain
        self.num_ignored: Counter[str] = Counter()  # requests, by the ignored field
        self.num_unenforced = 0  # requests with schema keywords that are not enforced
        self.resource_limits = ResourceLimits(settings)
        self.bodies = Bodies(
            self.resource_limits.body_bytes, settings.body_timeout_s, settings.max_body_bytes
        )
        self.offload = OffloadExecutor()
        self.active = ActiveRequests(self.closing)

    def count_unenforced(self) -> None:
        """Count a request with schema keywords that are not enforced."""
        self.num_unenforced += 1

    # Admission.

    def name(self, given: str | None) -> str:
        """Return the name of the requested model, where a request may leave it out.

        Raises:
            RequestError: several models are served, and none is named.
        """
        if given is None and len(self.models) != 1:
            raise RequestError("model must be given: several are served", param="model")
        return next(iter(self.models)) if given is None else given

    def check_admission(self, account: str) -> None:
        """Check that another request of a tenant or client network can be admitted now.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: too many requests are in progress.
        """
        self._check_open()
        if not self.resource_limits.requests.fits(account):
            raise self.resource_limits.requests.refusal(account)

    def admitted(self, account: str) -> Permit:
        """Admit one request, for as long as the returned context is open.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: too many requests are in progress.
        """
        self._check_open()
        return self.resource_limits.requests.acquire(account)

    def retry_after_s(self, account: str, *, is_reserved: bool = True) -> int:
        """Return after how many seconds to try again, and reserve that slot if asked to."""
        return self.resource_limits.requests.retry_after_s(account, is_reserved=is_reserved)

    def closing(self) -> Unavailable:
        """Return the 503 for requests during shutdown, with Retry-After at the drain deadline."""
        left_s = None if self._drained_s is None else self._drained_s - time.monotonic()
        return Unavailable(
            "the server is shutting down", code="server_draining", retry_after_s=waiting_s(left_s)
        )

    def _check_open(self) -> None:
        if self.is_draining:
            raise self.closing()

    def is_full(self, account: str) -> bool:
        """Tell whether the next request of a tenant or client network would be refused."""
        runners = [model.runner for model in self.models.values() if model.runner]
        return not self.resource_limits.requests.fits(account) or any(
            runner.is_full for runner in runners
        )

    def num_spare(self, num_own: int) -> int:
        """Return how many more background requests can be started.

        They leave half of the quota to interactive requests, and all of a model's queue.

        Args:
            num_own: background requests that exist already, admitted or about to be.
        """
        if any(model.runner.is_full for model in self.models.values() if model.runner):
            return 0
        half = max(1, self.settings.max_requests // 2)
        return half - max(num_own, self.resource_limits.requests.num_held)

    def ignore(
        self, names: frozenset[str], headers: Headers, *, besides: frozenset[str] = frozenset()
    ) -> dict[str, str]:
        """Count fields without effect, and return the header that reports them, if any.

        Args:
            names: the fields' names.
            headers: the request's headers.
            besides: fields that were reported before, and are reported again.

        Raises:
            RequestError: there are some, and the client or the operator forbids ignoring them.
        """
        if not names:
            return {}
        policy = self.settings.unknown_fields
        if policy == "refuse" or headers.get(STRICT_HEADER) == "1":
            raise unknown(names)
        self.num_ignored.update(counter_names(names))
        return {HEADER: header_value(names | besides)} if policy == "report" else {}

    # Logs and shutdown.

    def reopen_logs(self) -> None:
        """Open the log files by name again, after a log rotation moved them away."""
        self.audit.reopen()
        if self.access_log is not None:
            self.access_log.reopen()

    def _log_state(self, name: str, state: State) -> None:
        """Write to the audit log that a model is ready, unloaded or failed."""
        if state in ("ready", "unloaded", "failed"):
            self.audit.note("model", model=name, state=state)

    def close_logs(self) -> None:
        """Write what is left and close the logs; a second call does nothing."""
        self.audit.close()
        if self.access_log is not None:
            self.access_log.close()

    async def drain(self, timeout_s: float, last_words_s: float = 0.0) -> bool:
        """Refuse new work and wait for running requests; tell whether they ended in time.

        Requests that are left are cancelled; each of them still gets its error.

        Args:
            timeout_s: the deadline of everything.
            last_words_s: the part of it, at its end, that is reserved for sending errors.
        """
        self.is_draining = True
        self._drained_s = time.monotonic() + timeout_s
        self.bodies.end(self.closing)
        if await self.active.wait_until_idle(timeout_s - last_words_s):
            return True
        log.warning("drain deadline: cancelling running requests: %d", self.active.num_open)
        self.active.cancel()
        return False


def _spec(given: ModelSpec | Servable | Loader | None) -> ModelSpec:
    if isinstance(given, ModelSpec):
        return given
    return ModelSpec() if given is None or isinstance(given, Servable) else ModelSpec(load=given)
