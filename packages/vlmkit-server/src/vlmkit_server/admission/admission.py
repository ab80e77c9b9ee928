"""The admission of one request: what it may use of the server, and what it holds until its end.

It is opened when the headers are read, consulted as more becomes known, and closed once:

* the key: :meth:`Admission.set_usage` counts the request in its rate limits;
* the route: :meth:`Admission.check` refuses early what would be refused after the body;
* the body: :meth:`Admission.body` counts its bytes, and :meth:`Admission.admit` the request;
* the model: :meth:`Admission.lease` keeps it in memory;
* the prompt: :meth:`Admission.submit` reserves the images and tokens that it takes.

:mod:`vlmkit_server.admission.limits` has the limits. Errors of limits that cannot know a retry time
get it in :meth:`Admission.set_retry_time`.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from litestar.types import Receive, Scope

from vlmkit.errors import QueueFull, RequestError
from vlmkit.interfaces.runner import Admit, AnswerStream, Runner, RunnerFacts
from vlmkit.running.pipeline.forwarded_runner import ForwardedRunner
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request
from vlmkit_server.admission.bodies import Body
from vlmkit_server.admission.reservations import Reservations
from vlmkit_server.http.caller import internal_caller, tenant_or_network
from vlmkit_server.http.errors import ClientGone, TooLate
from vlmkit_server.http.quota import Permit
from vlmkit_server.logs.request_record import RECORD, RequestRecord
from vlmkit_server.rate_limits.cost import ONE_REQUEST
from vlmkit_server.rate_limits.tenant_usage import TenantUsage

if TYPE_CHECKING:
    from vlmkit_server.admission.control import AdmissionControl

T = TypeVar("T")
Report = Callable[[Request, Demand, RunnerFacts], None]
"""Reports what an admitted request of a model takes; may be called in any thread."""

TIMEOUT_HEADER = "x-request-timeout"
_ADMISSION = "admission"  # a key of the request's state
_SECONDS = re.compile(rb"\d{1,6}(\.\d{1,6})?")


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

    def __init__(self, control: "AdmissionControl", scope: Scope, timeout_s: float) -> None:
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

    def set_deadline(self, given: bytes | None) -> None:
        """Set the deadline.

        Args:
            given: the value of :data:`TIMEOUT_HEADER`, if the client sent it; a shorter time.

        Raises:
            RequestError: the header is invalid.
        """
        time_s = self._timeout_s if given is None else min(_seconds(given), self._timeout_s)
        if internal_caller(self._scope) is None:
            self.deadline_s = asyncio.get_running_loop().time() + time_s

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
            Overloaded: too many requests wait for their models.
        """
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
