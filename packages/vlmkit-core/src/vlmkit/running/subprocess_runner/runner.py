"""A runner that answers requests in a child process, which may crash without harm to this one.

A crash fails the requests that the child works for, each with one error, and the child is started
again, with growing pauses. The runner fails for good if the child cannot be started, ends too often
in a row, or is another model after a restart.
"""

import asyncio
import itertools
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence as Seq
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from vlmkit.errors import EngineError, EngineFailed, QueueFull, RequestError, VlmkitError
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Admit, AnswerStream
from vlmkit.running.engine_loop.stream import Wakeups
from vlmkit.running.faults.engine_errors import closing_error
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.running.subprocess_runner.child_process import ChildProcess
from vlmkit.running.subprocess_runner.messages import (
    Abort,
    Accepted,
    Close,
    Demanded,
    Detokenize,
    Detokenized,
    Drain,
    Drained,
    Entry,
    Malformed,
    News,
    Refused,
    Started,
    State,
    Steps,
    Submit,
    TokenEntry,
    Tokenize,
    Tokenized,
)
from vlmkit.running.subprocess_runner.open_request import OpenRequest
from vlmkit.settings.subprocess import SubprocessSettings
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.wire.buffers import NotSerializable

log = logging.getLogger(__name__)

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 30.0
CLOSE_S = 20.0  # for the child to close its model
NO_STATS = RunnerStats(0, 0, 0, 0, {}, {})


def _ignore(_: str) -> None:
    pass


class SubprocessRunner:
    """Answers requests in a child process.

    Args:
        plan: what the child builds; see :meth:`vlmkit.plugins.build_context.Pipelines.plan`.
        settings: limits of starting it.
        observers: receive the events of requests and steps in this process, by name; closed with
            the runner. Cache events are not sent.
        who: the name of the runner in errors.
        on_stage: called with the name of each stage of building the model when it begins, except
            after a restart.

    Raises:
        VlmkitError: the child cannot build the model.
        EngineError: the child ended before it had built the model.
    """

    def __init__(
        self,
        plan: bytes,
        settings: SubprocessSettings,
        observers: Mapping[str, Observer],
        who: str = "runner 'subprocess'",
        on_stage: Callable[[str], None] = _ignore,
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._who = who
        self._observers = ObserverDispatch(observers) if observers else None
        self._wants_steps = self._observers is not None and self._observers.handles("step")
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._requests: dict[int, OpenRequest] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._state = State(NO_STATS, is_full=False)
        # Accepted after that state, also if they have ended.
        self._uncounted: dict[int, OpenRequest] = {}
        self._past: Counter[str] = Counter()  # counters of children that ended
        self._failure: EngineFailed | None = None
        self._listeners: list[Callable[[BaseException], None]] = []
        self._closing = threading.Event()
        self._is_draining = False
        self._num_restarts = 0
        self._child: ChildProcess | None = None
        child, started = self._spawn(on_stage)
        self.facts = started.facts
        self._token_bytes, self._token_ends = started.token_bytes, started.token_ends
        self._adopt(child)

    @property
    def pid(self) -> int | None:
        """The process id of the child; None while none runs."""
        child = self._child
        return None if child is None else child.pid

    # Requests.

    def submit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request and return the stream of its answer; waits until it is accepted.

        Raises:
            RequestError: the request is invalid, too long or cannot be sent, or the queue is full.
            EngineError: the child is being restarted, or ended.
        """
        settled: Future[None] = Future()
        opened = self._begin(request, admit, settled)
        try:
            settled.result()
        except BaseException:
            opened.give_up()
            raise
        return opened.outcome()

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request without blocking the event loop; return when it is accepted.

        Raises:
            RequestError: the request is invalid, too long or cannot be sent, or the queue is full.
            EngineError: the child is being restarted, or ended.
        """
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        opened = self._begin(request, admit, settled)
        try:
            await settled
        except BaseException:
            opened.give_up()
            raise
        return opened.outcome()

    def _begin(
        self,
        request: Request,
        admit: Admit | None,
        settled: "asyncio.Future[None] | Future[None]",
    ) -> OpenRequest:
        if not request.id:
            request = replace(request, id=f"req-{secrets.token_hex(8)}")
        with self._lock:
            child = self._running_child()
            if self._is_draining:
                raise closing_error()
            number = next(self._numbers)
            opened = OpenRequest(number, request, admit, child, self._who, settled)
            self._requests[opened.number] = opened
        try:
            child.send(Submit(opened.number, request, admit is not None))
        except NotSerializable as error:
            with self._lock:
                self._requests.pop(opened.number, None)
            raise self._not_sent(str(error)) from None
        return opened

    def _not_sent(self, what: str) -> RequestError:
        return RequestError(
            f"the request holds {what}, which {self._who} cannot send to its process",
            code="not_serializable",
            hint="serve the model without this runner",
        )

    def _running_child(self) -> ChildProcess:
        if self._failure is not None:
            raise EngineFailed(str(self._failure), hint=self._failure.hint)
        if self._closing.is_set():
            raise closing_error()
        if self._child is None:
            raise EngineError("the model is being restarted", hint="try again later")
        return self._child

    # Calls.

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return the tokens of a request's prompt, which the child builds.

        Raises:
            RequestError: the request is invalid, or cannot be sent.
            EngineError: the child is being restarted, or ended.
        """
        tokens: PromptTokens = await self._acall(lambda number: Tokenize(number, request))
        return tokens

    def detokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens; waits for the child.

        Raises:
            RequestError: a token is not in the vocabulary.
            EngineError: the child is being restarted, or ended.
        """
        ids = tuple(token_ids)
        text: str = self._call(lambda number: Detokenize(number, ids))[1].result()
        return text

    async def adetokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens without blocking the event loop; see :meth:`detokenize`."""
        ids = tuple(token_ids)
        text: str = await self._acall(lambda number: Detokenize(number, ids))
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, from a table of this process.

        Raises:
            RequestError: the token is not in the vocabulary.
        """
        if not 0 <= token_id < len(self._token_ends):
            raise RequestError("a token is not in the vocabulary", param="token_ids")
        start = self._token_ends[token_id - 1] if token_id else 0
        return self._token_bytes[start : self._token_ends[token_id]]

    def token_table(self) -> Seq[bytes]:
        """Return the bytes of all tokens."""
        return [self.token_bytes(token_id) for token_id in range(len(self._token_ends))]

    def _call(self, message_of: Callable[[int], object]) -> tuple[int, "Future[Any]"]:
        answer: Future[Any] = Future()
        with self._lock:
            child = self._running_child()
            number = next(self._numbers)
            self._calls[number] = answer
        try:
            child.send(message_of(number))
        except NotSerializable as error:
            with self._lock:
                self._calls.pop(number, None)
            raise self._not_sent(str(error)) from None
        return number, answer

    async def _acall(self, message_of: Callable[[int], object]) -> Any:
        number, answer = self._call(message_of)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            child = self._child
            if child is not None:
                child.send(Abort(number))
            raise

    # State.

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered: the child runs, and is not being closed."""
        return self._child is not None and not self._closing.is_set()

    @property
    def is_restarting(self) -> bool:
        """Whether the child has ended, and another one is started."""
        return self._child is None and self._failure is None and not self._closing.is_set()

    @property
    def is_full(self) -> bool:
        """Whether a new request would be refused because the queue of the child is full."""
        return self._state.is_full

    def stats(self) -> RunnerStats:
        """Return the last statistics of the child, and the requests accepted since then.

        A request counts as open until the child reports the counters with its end. Counters include
        those of earlier children.
        """
        stats, uncounted = self._state.stats, list(self._uncounted.values())
        observed = {} if self._observers is None else self._observers.stats()
        counters = {name: n + self._past[name] for name, n in stats.counters.items()}
        return replace(
            stats,
            num_running=stats.num_running + sum(each.num_running for each in uncounted),
            num_waiting=stats.num_waiting + sum(each.num_waiting for each in uncounted),
            counters=counters,
            observed=stats.observed | observed,
        )

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Call a function with the error when the child is given up; at once if it has been."""
        with self._lock:
            failure = self._failure
            if failure is None:
                self._listeners.append(tell)
        if failure is not None:
            tell(failure)

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the running ones; return whether all ended in time."""
        deadline = time.monotonic() + timeout_s
        self._is_draining = True
        try:
            is_empty: bool = self._call(lambda number: Drain(number, max(0.0, timeout_s)))[
                1
            ].result()
        except EngineError:  # no process runs, and so no request
            return not self._requests
        while self._requests and time.monotonic() < deadline:
            time.sleep(0.002)  # the last ends are on their way
        return is_empty and not self._requests

    def close(self) -> None:
        """Abort all requests, and end the child; a second call does nothing."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
            child = self._child
        if child is not None:
            child.send(Close())
            child.close(CLOSE_S)
        if self._observers is not None:
            self._observers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # The child.

    def _spawn(self, on_stage: Callable[[str], None]) -> tuple[ChildProcess, Started]:
        child = ChildProcess(self._plan, self._who, wants_steps=self._wants_steps)
        return child, child.started(self._settings.start_timeout_s, on_stage)

    def _adopt(self, child: ChildProcess) -> None:
        """Send requests to a child from now on."""
        with self._lock:
            is_wanted = not self._closing.is_set()
            if is_wanted:
                self._child = child
        if not is_wanted:
            child.close()
            return
        self._started_s = time.monotonic()
        wakeups = Wakeups()
        child.run(
            lambda message: self._receive(message, wakeups),
            wakeups.flush,
            lambda: self._ended(child, wakeups),
        )

    def _receive(self, message: Any, wakeups: Wakeups) -> None:
        """Deliver a message of the child; runs in the thread that reads them."""
        if isinstance(message, News):
            for entry in message.entries:
                self._deliver(entry, wakeups)
        elif isinstance(message, Demanded):
            if (opened := self._requests.get(message.number)) is not None:
                opened.decide(message.demand)
        elif isinstance(message, Refused | Malformed):
            self._refused(message, wakeups)
        elif isinstance(message, Tokenized | Detokenized | Drained):
            self._answered(message)
        elif isinstance(message, State):
            self._state, self._uncounted = message, {}
        elif isinstance(message, Steps) and self._observers is not None:
            for step in message.steps:
                self._observers.notify("step", step)

    def _deliver(self, entry: Accepted | TokenEntry | Entry, wakeups: Wakeups) -> None:
        """Deliver news of one request."""
        if (opened := self._requests.get(entry.number)) is None:
            return
        if isinstance(entry, Accepted):
            self._uncounted[entry.number] = opened
            opened.accept(entry, self.facts, self._observers, wakeups)
        elif opened.add(entry, wakeups):
            self._requests.pop(entry.number, None)

    def _refused(self, message: Refused | Malformed, wakeups: Wakeups) -> None:
        if isinstance(message, Malformed):
            message = Refused(message.number, self._not_sent("a value of a wrong type"))
        if isinstance(message.error, QueueFull):
            self._state = replace(self._state, is_full=True)
        if (opened := self._requests.pop(message.number, None)) is not None:
            opened.fail(message.error, wakeups, message)
        if (answer := self._calls.pop(message.number, None)) is not None:
            _fail(answer, message.error)

    def _answered(self, message: Tokenized | Detokenized | Drained) -> None:
        answer = self._calls.pop(message.number, None)
        if answer is None:
            return
        value: PromptTokens | str | bool
        if isinstance(message, Tokenized):
            value = message.tokens
        elif isinstance(message, Detokenized):
            value = message.text
        else:
            value = message.is_empty
        with suppress(InvalidStateError):  # its caller has gone, perhaps just now
            answer.set_result(value)

    def _ended(self, child: ChildProcess, wakeups: Wakeups) -> None:
        """Fail the requests of a child that ended, and start another one."""
        reason = child.reason
        with self._lock:
            self._child = None
            requests, self._requests = self._requests, {}
            calls, self._calls = self._calls, {}
            stats = self._state.stats
            self._past.update(stats.counters)
            zeros = dict.fromkeys(stats.counters, 0)
            self._state = State(replace(NO_STATS, counters=zeros), is_full=False)
            self._uncounted = {}
            is_closing = self._closing.is_set()
        for opened in requests.values():
            opened.fail(closing_error() if is_closing else self._lost(reason), wakeups)
        for answer in calls.values():
            _fail(answer, closing_error() if is_closing else self._lost(reason))
        wakeups.flush()
        if is_closing:
            return
        log.error("model %r: its process ended (%s); it is restarted", self.facts.name, reason)
        threading.Thread(
            target=self._restart, args=(reason,), name="vlmkit-restart", daemon=True
        ).start()

    def _lost(self, reason: str) -> EngineError:
        return EngineError(f"the process of the model ended ({reason})", hint="try again later")

    def _restart(self, reason: str) -> None:
        if time.monotonic() - self._started_s > self._settings.stable_s:
            self._num_restarts = 0
        while self._num_restarts < self._settings.max_restarts:
            pause_s = min(MAX_PAUSE_S, MIN_PAUSE_S * 2 ** min(self._num_restarts, 16))
            self._num_restarts += 1
            if self._closing.wait(pause_s):
                return
            try:
                child, started = self._spawn(_ignore)
            except (VlmkitError, OSError) as error:
                reason = str(error)
                log.warning("model %r: it could not be restarted: %s", self.facts.name, error)
                continue
            if started.facts != self.facts:
                child.close()
                self._give_up(f"{self._who}: the facts of its process changed after a restart")
                return
            self._adopt(child)
            return
        self._give_up(f"{self._who}: its process ended too often, at last by {reason}")

    def _give_up(self, message: str) -> None:
        failure = EngineFailed(message, hint="see the server's log")
        log.error("model %r: %s", self.facts.name, message)
        with self._lock:
            self._failure = failure
            listeners, self._listeners = self._listeners, []
        for tell in listeners:
            tell(failure)


def _fail(answer: "Future[Any]", error: VlmkitError) -> None:
    """Fail a call, unless its caller has gone."""
    with suppress(InvalidStateError):
        answer.set_exception(error)
