"""Admission control of a server: its limits, what holds them, and whether it accepts work.

There is one object for each server. Each request opens an
:class:`~vlmkit_server.admission.admission.Admission` with it. ``/readyz`` and metrics read it, and
no other module counts requests. It is used in the event loop's thread.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from litestar.types import Scope

from vlmkit.interfaces.runner import Runner
from vlmkit_server.admission.admission import Admission
from vlmkit_server.admission.bodies import Bodies
from vlmkit_server.admission.limits import WAITING_FOR_MODELS, ResourceLimits
from vlmkit_server.fleet.fleet import Fleet
from vlmkit_server.http.errors import Overloaded, Unavailable, waiting_s
from vlmkit_server.http.quota import Permit
from vlmkit_server.rate_limits.tenants import TenantUsages
from vlmkit_server.settings.server import ServerSettings

log = logging.getLogger(__name__)


class AdmissionControl:
    """The limits of a server.

    Args:
        settings: the limits.
        fleet: the models.

    Attributes:
        fleet: the models.
        limits: the quotas.
        usages: the usage that rate limits count, of every key and address.
        bodies: the bodies that are being read.
        num_open: the number of requests of any kind in progress.
        tasks: the work of requests, which the end of a drain cancels.
        is_draining: whether new work is refused.
    """

    def __init__(self, settings: ServerSettings, fleet: Fleet) -> None:
        self.fleet = fleet
        self.limits = ResourceLimits(settings)
        self.usages = TenantUsages(settings.limits)
        self.bodies = Bodies(
            self.limits.body_bytes, settings.body_timeout_s, settings.max_body_bytes
        )
        self.num_open = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_draining = False
        self._timeout_s = settings.timeout_s
        self._max_waiting = WAITING_FOR_MODELS.most(settings)
        self._drained_s: float | None = None  # the deadline of the drain
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def open(self, scope: Scope) -> Admission:
        """Open the admission of a request, which counts until its context ends."""
        self.begin()
        return Admission(self, scope, self._timeout_s)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count work of any kind; a drain waits for it."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Count work that begins."""
        self.num_open += 1
        self._is_idle.clear()

    def end(self) -> None:
        """Count work that has ended."""
        self.num_open -= 1
        if not self.num_open:
            self._is_idle.set()

    # Requests that are answered.

    def check(self, account: str) -> None:
        """Check that another request of a tenant or client network can be admitted now.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: too many requests are in progress.
        """
        self._check_open()
        if not self.limits.requests.fits(account):
            raise self.limits.requests.refusal(account)

    def permit(self, account: str) -> Permit:
        """Admit a request, until the returned permit is released.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: too many requests are in progress.
        """
        self._check_open()
        return self.limits.requests.acquire(account)

    def retry_after_s(self, account: str, *, is_reserved: bool = True) -> int:
        """Return after how many seconds to try again, and reserve that slot if asked to."""
        return self.limits.requests.retry_after_s(account, is_reserved=is_reserved)

    def is_full(self, account: str) -> bool:
        """Tell whether the next request of a tenant or client network would be refused."""
        return not self.limits.requests.fits(account) or self._has_full_queue

    def num_spare(self, num_own: int) -> int:
        """Return how many more background requests can be started.

        They leave half of the quota to interactive requests, and all of a model's queue.

        Args:
            num_own: background requests that exist already, admitted or about to be.
        """
        if self._has_full_queue:
            return 0
        half = max(1, self.limits.requests.limit // 2)
        return half - max(num_own, self.limits.requests.num_held)

    @property
    def _has_full_queue(self) -> bool:
        return any(runner.is_full for runner in self._runners)

    @property
    def _runners(self) -> Iterable[Runner]:
        return [model.runner for model in self.fleet.models if model.runner]

    def check_waiting(self, num_waiting: int) -> None:
        """Check that another request may wait for its model to be loaded.

        Raises:
            Overloaded: too many wait.
        """
        if num_waiting >= self._max_waiting:
            raise Overloaded(WAITING_FOR_MODELS.message)

    # Shutdown.

    def closing(self) -> Unavailable:
        """Return the 503 for requests during shutdown, with Retry-After at the drain deadline."""
        left_s = None if self._drained_s is None else self._drained_s - time.monotonic()
        return Unavailable(
            "the server is shutting down", code="server_draining", retry_after_s=waiting_s(left_s)
        )

    def _check_open(self) -> None:
        if self.is_draining:
            raise self.closing()

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
        try:
            await asyncio.wait_for(self._is_idle.wait(), timeout_s - last_words_s)
        except TimeoutError:
            log.warning("drain deadline: cancelling running requests: %d", self.num_open)
            for task in self.tasks:
                task.cancel()
            return False
        return True
