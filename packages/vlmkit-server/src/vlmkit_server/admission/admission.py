"""Admission control: what the server accepts, what one request may use of it, and what it holds.

There is one :class:`AdmissionControl` for each server. ``/readyz`` and metrics read it, and nothing
else counts requests. It is used in the event loop's thread.

Each request has an :class:`Admission`, which is opened when the headers are read, consulted as more
becomes known, and closed once:

* the key: :meth:`Admission.set_usage` counts the request in its rate limits;
* the route: :meth:`Admission.check` refuses early what would be refused after the body;
* the body: :meth:`Admission.body` counts its bytes, and :meth:`Admission.admit` the request;
* the model: :meth:`Admission.lease` keeps it in memory, and admits a request without a body;
* the prompt: :meth:`Admission.submit` reserves the images and tokens that it takes.

:mod:`vlmkit_server.admission.limits` has the limits. Errors of limits that cannot know a retry time
get it in :meth:`Admission.set_retry_time`.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, TypeVar

from litestar.types import Receive, Scope

from vlmkit.errors import QueueFull, RequestError
from vlmkit.interfaces.runner import Admit, AnswerStream, Runner, RunnerFacts
from vlmkit.running.pipeline.forwarded_runner import ForwardedRunner
from vlmkit.types.demand import Demand
from vlmkit.types.message import images_of, num_pixels
from vlmkit.types.request import Request
from vlmkit_server.admission.bodies import Bodies, Body
from vlmkit_server.admission.image_budget import ImageBudget
from vlmkit_server.admission.limits import WAITING_FOR_MODELS, ResourceLimits
from vlmkit_server.admission.reservations import Reservations
from vlmkit_server.fleet.fleet import Fleet
from vlmkit_server.http.caller import internal_caller, tenant_or_network
from vlmkit_server.http.errors import ClientGone, Overloaded, TooLate, Unavailable, waiting_s
from vlmkit_server.http.quota import Permit
from vlmkit_server.logs.request_record import RECORD, RequestRecord
from vlmkit_server.rate_limits.cost import ONE_REQUEST
from vlmkit_server.rate_limits.tenant_usage import TenantUsage
from vlmkit_server.rate_limits.tenants import TenantUsages
from vlmkit_server.settings.server import ServerSettings

log = logging.getLogger(__name__)

T = TypeVar("T")
Report = Callable[[Request, Demand, RunnerFacts], None]
"""Reports what an admitted request of a model takes; may be called in any thread."""

TIMEOUT_HEADER = "x-request-timeout"
_ADMISSION = "admission"  # a key of the request's state
_SECONDS = re.compile(rb"\d{1,6}(\.\d{1,6})?")


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
        max_request_pixels: the pixels of all images of one prompt.
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
        self.max_request_pixels = settings.max_request_pixels
        self._timeout_s = settings.timeout_s
        self._max_waiting = WAITING_FOR_MODELS.most(settings)
        self._drained_s: float | None = None  # the deadline of the drain
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def open(self, scope: Scope) -> "Admission":
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


class Admission:
    """What one request may use, and holds; an async context that releases everything at its end.

    Args:
        control: the limits of the server.
        scope: the request's scope, which refers to the admission from now on.
        timeout_s: the longest time that a request has.

    Attributes:
        deadline_s: when its work is cancelled, by the event loop's clock; None for a request that
            the server itself makes.
        usage: the usage that its rate limits count; None without limits.
        buffers_answers: whether complete answers are kept in memory, so that their
            log-probabilities count.
    """

    def __init__(self, control: AdmissionControl, scope: Scope, timeout_s: float) -> None:
        self._control = control
        self._scope = scope
        self._timeout_s = timeout_s
        self._held = AsyncExitStack()
        self._permit: Permit | None = None
        self._watcher: asyncio.Task[None] | None = None  # ends when the client disconnects
        self._reservations: Reservations | None = None
        self._record: RequestRecord | None = scope["state"].get(RECORD)
        self.deadline_s: float | None = None
        self.usage: TenantUsage | None = None
        self.buffers_answers = False
        scope["state"][_ADMISSION] = self

    async def __aenter__(self) -> "Admission":
        if internal_caller(self._scope) is None:
            self.deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        try:
            await self._held.__aexit__(kind, error, traceback)
        finally:
            if self._permit is not None:
                self._permit.release()
            self._control.end()

    @cached_property
    def account(self) -> str:
        """The tenant, or the client network where the server has no keys."""
        return tenant_or_network(self._scope)

    # What becomes known, in this order.

    def shorten_deadline(self, given: bytes) -> None:
        """Set an earlier deadline that the client wishes.

        Args:
            given: the value of :data:`TIMEOUT_HEADER`.

        Raises:
            RequestError: it is invalid.
        """
        time_s = _seconds(given)
        if self.deadline_s is not None:
            wanted_s = asyncio.get_running_loop().time() + time_s
            self.deadline_s = min(self.deadline_s, wanted_s)

    def set_usage(self, usage: TenantUsage | None, *, is_counted: bool) -> None:
        """Set the usage that rate limits count, and count the request.

        Args:
            usage: the usage of the key or address; None without limits.
            is_counted: whether the request itself counts.

        Raises:
            RateLimited: the limit of requests is reached.
        """
        self.usage = usage
        if usage is not None and is_counted:
            usage.use(ONE_REQUEST)

    def check(self) -> None:
        """Check that the request can be admitted now, before its body is read.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: too many requests are in progress.
        """
        self._control.check(self.account)

    def body(self) -> AbstractContextManager[Body]:
        """Return a context in which the body is read, and its bytes count."""
        return self._control.bodies.opened(self.account)

    def admit(self) -> None:
        """Admit the request, whose body has arrived.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: too many requests are in progress.
        """
        self._permit = self._control.permit(self.account)

    async def lease(self, name: str, report: Report) -> Runner:
        """Return the runner of a model, which stays in memory until the admission is closed.

        Args:
            name: the model.
            report: called for each request that the runner admits.

        Returns:
            A runner whose requests are charged and recorded.

        Raises:
            ModelNotFound: the model does not exist.
            Unavailable: the model cannot answer now, or was not loaded in time.
            Overloaded: too many requests are in progress, or wait for their models.
        """
        if self._permit is None:  # its route has no body; what needs no model is never refused
            self.admit()
        if self._reservations is None and (self.usage is not None or self.buffers_answers):
            self._reservations = Reservations(
                self.usage,
                self._control.limits.logprob_bytes if self.buffers_answers else None,
                self.account,
            )
            self._held.callback(self._reservations.close)
        runner = await self._held.enter_async_context(
            self._control.fleet.leased(name, self._control.check_waiting)
        )
        return _AdmittedRunner(runner, self, report)

    async def submit(self, runner: Runner, request: Request, admit: Admit) -> AnswerStream:
        """Start a request, if the limits allow what its prompt and its answer may take.

        Args:
            runner: runs the request.
            request: the request.
            admit: decides before anything is reserved.

        Raises:
            RateLimited: a rate limit is reached.
            RequestError: the request is invalid or too long, or the queue is full.
        """
        if self._reservations is None:
            stream = await runner.asubmit(request, admit)
        else:
            stream = await self._reservations.submit(runner, request, admit)
        if self._record is not None:
            self._record.answers.append(stream)
        return stream

    def check_pixels(self, request: Request, demand: Demand) -> None:
        """Check the pixels of a prompt with images from files; may be called in any thread.

        Raises:
            ImageError: its images together have too many pixels.
        """
        if demand.opened_pixels:
            budget = ImageBudget(self._control.max_request_pixels)
            budget.count(demand.opened_pixels + num_pixels(images_of(request.messages)))

    # Its work and its end.

    async def attend(self, work: Coroutine[Any, Any, T], receive: Receive | None) -> T:
        """Run the work of the request until it ends or its result is no longer wanted.

        Args:
            work: is cancelled when the client disconnects, the deadline passes, or the server
                gives up.
            receive: the connection, from which nothing but a disconnect is expected; None where the
                work outlives it.

        Raises:
            ClientGone: the client disconnected.
            TooLate: the deadline passed.
            Unavailable: the server is shutting down and did not wait any longer.
        """
        left_s = None
        if self.deadline_s is not None:
            left_s = self.deadline_s - asyncio.get_running_loop().time()
        task = asyncio.ensure_future(work)
        awaited: list[asyncio.Task[Any]] = [task]
        if receive is not None:
            if self._watcher is None:
                self._watcher = asyncio.ensure_future(disconnected(receive))
            awaited.append(self._watcher)
        self._control.tasks.add(task)
        try:
            await asyncio.wait(awaited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone if any(each.done() for each in awaited) else TooLate
            if task.cancelled():
                raise self._control.closing()
            return task.result()
        finally:
            self._control.tasks.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def set_retry_time(self, error: QueueFull | TooLate) -> None:
        """Set when to try again, unless the limit itself knows: by the drain rate of requests."""
        if error.retry_after_s is None or isinstance(error, TooLate):
            error.retry_after_s = self._control.retry_after_s(self.account)

    def transfer(self) -> AsyncExitStack:
        """Transfer the leased models and the reservations to work that outlives the request."""
        return self._held.pop_all()


class _AdmittedRunner(ForwardedRunner):
    """A runner whose requests pass an admission.

    Args:
        runner: runs the requests.
        admission: admits them.
        report: called for each admitted request.
    """

    def __init__(self, runner: Runner, admission: Admission, report: Report) -> None:
        super().__init__(runner)
        self._admission = admission
        self._report = report

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request, if its admission allows it.

        Args:
            request: the request.
            admit: decides first; see :meth:`vlmkit.interfaces.runner.Runner.submit`.
        """

        def reported(demand: Demand) -> None:
            self._admission.check_pixels(request, demand)
            if admit is not None:
                admit(demand)
            self._report(request, demand, self.facts)

        return await self._admission.submit(self._runner, request, reported)


def admission_of(scope: Scope) -> Admission:
    """Return the admission of a request."""
    admission: Admission = scope["state"][_ADMISSION]
    return admission


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _seconds(given: bytes) -> float:
    if not _SECONDS.fullmatch(given) or not float(given):
        raise RequestError(
            f"{TIMEOUT_HEADER} must be a number of seconds over 0, such as 2.5, and below a "
            "million",
            param=TIMEOUT_HEADER,
        )
    return float(given)
