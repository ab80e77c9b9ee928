"""What a server serves right now: its models, and the requests under way.

Is called in the event loop's thread.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from litestar.datastructures import Headers
from litestar.types import Receive, Scope

from vlmkit.errors import RequestError
from vlmkit.interfaces.request_field import FieldFacts
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.settings.fetch import FetchSettings
from vlmkit_server.auth.key_ring import key_ring
from vlmkit_server.exchange.bodies import Bodies
from vlmkit_server.exchange.deadline import TooLate, deadline_of
from vlmkit_server.exchange.monitors import Monitors
from vlmkit_server.exchange.offload import OffloadExecutor
from vlmkit_server.exchange.resource_limits import ResourceLimits
from vlmkit_server.fleet.fleet import Fleet
from vlmkit_server.fleet.model_handle import State
from vlmkit_server.fleet.model_registry import ModelRegistry
from vlmkit_server.fleet.model_spec import Loader, ModelSpec, Served, runner_of
from vlmkit_server.http.errors import ClientGone, Unavailable, waiting_s
from vlmkit_server.http.quota import Permit
from vlmkit_server.interfaces.monitor import Monitor
from vlmkit_server.logs.audit import AuditLog
from vlmkit_server.logs.line_file import LateLineFile
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
"""Fields that plugins added, by name: what one means to each component that takes it."""

T = TypeVar("T")


class Service:
    """The models by name, and whether work is taken.

    Args:
        models: by the name they are served under: runners, models, functions that load one, or how
            one is offered; None where somebody else brings the runner.
        settings: bounds.
        toolbox: the tools that the server runs; none when None.
        monitors: who looks on, each by its name.
        request_fields: fields that plugins added to requests, as far as they are known before the
            models are there; those of models that are there are known anyway.
        component_names: who made the monitors.
        fetch: whether images are fetched that requests name by URL; none are when None.

    Raises:
        ConfigError: two models have one name, they cannot be within the memory budget, or the file
            of keys, or another that the settings name, cannot be used.
    """

    def __init__(
        self,
        models: Mapping[str, ModelSpec | Served | Loader | None],
        settings: ServerSettings,
        toolbox: Toolbox | None = None,
        monitors: Mapping[str, Monitor] = MappingProxyType({}),
        request_fields: KnownFields = MappingProxyType({}),
        component_names: ComponentNames = UNKNOWN,
        fetch: FetchSettings | None = None,
    ) -> None:
        self.request_fields = dict(request_fields)
        offers = {name: _offer(given) for name, given in models.items()}
        self.roster = ModelRegistry(offers, settings.fleet)
        self.models = self.roster.models
        self.fleet = Fleet(self.roster, settings.fleet, max(1, settings.max_requests // 2))
        self.audit = AuditLog(settings.audit_log)
        for model in self.models.values():
            model.tell = self._note_state
        for name, given in models.items():
            if isinstance(given, Served):
                self.fleet.add(self.models[name], runner_of(given))
                for field, facts in runner_of(given).facts.request_fields.items():
                    known = self.request_fields.get(field, ())
                    if facts not in known:
                        self.request_fields[field] = (*known, facts)
        self.settings = settings
        self.fetch = fetch or FetchSettings()
        self.keys = key_ring(settings)
        self.accounts = TenantUsages(settings.limits)
        self.access_log = (
            LateLineFile(settings.access_log, "server.access_log") if settings.access_log else None
        )
        self.toolbox = toolbox or Toolbox()
        self.monitors = Monitors(monitors, component_names)
        self.is_draining = False
        self._drained_s: float | None = None  # when that has its end, whatever is left
        self.num_open = 0
        self.num_ignored: Counter[str] = Counter()  # requests, by keys that had no effect on them
        self.num_unconstrained = 0  # requests whose answers are not held to all of their schemas
        self.ledger = ResourceLimits(settings)
        self.bodies = Bodies(
            self.ledger.body_bytes, settings.body_timeout_s, settings.max_body_bytes
        )
        self.offload = OffloadExecutor()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def count_unconstrained(self) -> None:
        """Count a request whose answer is not held to all of its schemas."""
        self.num_unconstrained += 1

    # Who may come in.

    def name(self, given: str | None) -> str:
        """Return which model is meant where a request need not say so.

        Raises:
            RequestError: there are several.
        """
        if given is None and len(self.models) != 1:
            raise RequestError("model must be given: several are served", param="model")
        return next(iter(self.models)) if given is None else given

    def check_room(self, account: str) -> None:
        """Do nothing if another request on somebody's account can be taken in now.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: there are too many requests under way.
        """
        self._check_open()
        if not self.ledger.requests.fits(account):
            raise self.ledger.requests.refusal(account)

    def admitted(self, account: str) -> Permit:
        """Take one request in, for as long as the context that is returned is open.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: there are too many requests under way.
        """
        self._check_open()
        return self.ledger.requests.claim(account)

    def retry_after_s(self, account: str, *, is_noted: bool = True) -> int:
        """Return in how many seconds it is the turn of a request, which is kept if it is noted."""
        return self.ledger.requests.turn_s(account, is_noted=is_noted)

    def closing(self) -> Unavailable:
        """Return what is told who comes while the server shuts down: when that is over at last."""
        left_s = None if self._drained_s is None else self._drained_s - time.monotonic()
        return Unavailable(
            "the server is shutting down", code="server_draining", retry_after_s=waiting_s(left_s)
        )

    def _check_open(self) -> None:
        if self.is_draining:
            raise self.closing()

    def is_full(self, account: str) -> bool:
        """Tell whether the next request on somebody's account would be refused for want of room."""
        runners = [model.runner for model in self.models.values() if model.runner]
        return not self.ledger.requests.fits(account) or any(runner.is_full for runner in runners)

    def num_spare(self, num_own: int) -> int:
        """Return how many more requests can be made that nobody waits for.

        They leave half of the room to those that somebody waits for, and all of a model's queue.

        Args:
            num_own: how many such requests there are already, admitted or about to be.
        """
        if any(model.runner.is_full for model in self.models.values() if model.runner):
            return 0
        half = max(1, self.settings.max_requests // 2)
        return half - max(num_own, self.ledger.requests.num_held)

    def ignore(
        self, names: frozenset[str], headers: Headers, *, besides: frozenset[str] = frozenset()
    ) -> dict[str, str]:
        """Count fields without effect, and return the header that tells their sender, if any.

        Args:
            names: of the fields.
            headers: of the request.
            besides: fields that were told before, and are told again.

        Raises:
            RequestError: there are some, and client or operator wants none ignored.
        """
        if not names:
            return {}
        policy = self.settings.unknown_fields
        if policy == "refuse" or headers.get(STRICT_HEADER) == "1":
            raise unknown(names)
        self.num_ignored.update(counter_names(names))
        return {HEADER: header_value(names | besides)} if policy == "report" else {}

    # Who is in.

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count a request of any kind, which a drain waits for."""
        self.num_open += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._is_idle.set()

    async def attend(self, work: Coroutine[Any, Any, T], receive: Receive, scope: Scope) -> T:
        """Do the work of one request for as long as anyone wants its result.

        Args:
            work: is cancelled when the client goes away, its time is over, or the server gives up.
            receive: the connection, of which nothing but its end is expected.
            scope: of the request, which knows when it has to be done.

        Raises:
            ClientGone: the client closed the connection first.
            TooLate: the request has no more time.
            Unavailable: the server is shutting down and did not wait any longer.
        """
        deadline_s = deadline_of(scope)
        left_s = None if deadline_s is None else deadline_s - asyncio.get_running_loop().time()
        task = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(disconnected(receive))
        self._tasks.add(task)
        try:
            await asyncio.wait((task, watcher), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone if watcher.done() else TooLate
            if task.cancelled():
                raise self.closing()
            return task.result()
        finally:
            self._tasks.discard(task)
            task.cancel()
            watcher.cancel()
            await asyncio.gather(task, watcher, return_exceptions=True)

    # The end.

    def reopen_logs(self) -> None:
        """Go on in the files that have the logs' names now: those of before were moved away."""
        self.audit.reopen()
        if self.access_log is not None:
            self.access_log.reopen()

    def _note_state(self, name: str, state: State) -> None:
        """Write down that a model is there, is gone, or could not be loaded."""
        if state in ("ready", "unloaded", "failed"):
            self.audit.note("model", model=name, state=state)

    def close_logs(self) -> None:
        """Write what is left; harmless when done twice."""
        self.audit.close()
        if self.access_log is not None:
            self.access_log.close()

    async def drain(self, timeout_s: float, last_words_s: float = 0.0) -> bool:
        """Take no more work and wait for what is under way; tell whether it ended in time.

        What is left is cancelled; each such request still gets its error.

        Args:
            timeout_s: until everything has to be over.
            last_words_s: part of it, at its end, for errors to be sent.
        """
        self.is_draining = True
        self._drained_s = time.monotonic() + timeout_s
        self.bodies.end(self.closing)
        try:
            await asyncio.wait_for(self._is_idle.wait(), timeout_s - last_words_s)
        except TimeoutError:
            log.warning("drain deadline: cancelling requests that still run: %d", self.num_open)
            for task in self._tasks:
                task.cancel()
            return False
        return True


def _offer(given: ModelSpec | Served | Loader | None) -> ModelSpec:
    if isinstance(given, ModelSpec):
        return given
    return ModelSpec() if given is None or isinstance(given, Served) else ModelSpec(load=given)


async def disconnected(receive: Receive) -> None:
    """Return when the client closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
