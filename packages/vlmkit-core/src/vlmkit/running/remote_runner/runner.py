"""A runner whose requests another process answers, which may crash without harm to this one.

When the connection ends, each open request gets one error, and the runner connects again, with
pauses. It fails for good if the peer says so, or is another model than before.
"""

import asyncio
import itertools
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence as Seq
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any, Self

from vlmkit.errors import EngineError, EngineFailed, QueueFull, RequestError, VlmkitError
from vlmkit.interfaces.cache_events import CacheChange
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Admit, AnswerStream
from vlmkit.running.engine_loop.stream import Wakeups
from vlmkit.running.faults.engine_errors import closing_error
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.running.remote_runner.connection import Connection, Peer
from vlmkit.running.remote_runner.messages import (
    Abort,
    Accepted,
    Blocks,
    Close,
    Demanded,
    Detokenize,
    Detokenized,
    Drain,
    Drained,
    Entry,
    Lost,
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
from vlmkit.running.remote_runner.open_request import OpenRequest
from vlmkit.running.remote_runner.quarantine import Quarantine
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.wire.buffers import NotSerializable

log = logging.getLogger(__name__)

CLOSE_S = 20.0  # for the process to close its model, or to end the requests of this runner
NO_STATS = RunnerStats(0, 0, 0, 0, {}, {})


def _ignore(_: str) -> None:
    pass


class RemoteRunner:
    """Answers requests in another process.

    Args:
        peer: the process.
        observers: receive the events of requests and steps in this process, by name, and cache
            events where the other process sends them; closed with the runner.
        on_stage: called with the name of each stage of building the model when it begins, except
            when the runner connects again.
        known: what the process is expected to state. If it cannot be reached now, the runner starts
            without a connection, and makes one later.
        quarantine: refuses requests with which the process ended repeatedly; None for one of its
            own.

    Raises:
        VlmkitError: the process cannot build the model, or cannot be reached and is not known.
    """

    def __init__(
        self,
        peer: Peer,
        observers: Mapping[str, Observer],
        on_stage: Callable[[str], None] = _ignore,
        known: Started | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._peer = peer
        self._quarantine = quarantine or Quarantine()
        self._is_crash_noted = False
        self._who = peer.who
        self._observers = ObserverDispatch(observers) if observers else None
        self._has_cache_events = False
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._requests: dict[int, OpenRequest] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._state = State(NO_STATS, is_full=False)
        # Accepted after that state, also if they have ended.
        self._uncounted: dict[int, OpenRequest] = {}
        self._past: Counter[str] = Counter()  # counters of earlier connections
        self._last_counters: Mapping[str, int] = {}  # of the last one, until the next state
        self._failure: EngineFailed | None = None
        self._listeners: list[Callable[[BaseException], None]] = []
        self._closing = threading.Event()
        self._is_draining = False
        self._connection: Connection | None = None
        self._started_s = time.monotonic()
        try:
            connection, started = peer.connect(on_stage)
        except VlmkitError as error:
            if known is None:
                raise
            self._know(known)
            self._begin_again(str(error))
        else:
            self._know(started)
            self._adopt(connection)

    def started(self) -> Started:
        """Return what the process stated, for a further runner of the same model."""
        return Started(self.facts, self._token_bytes, self._token_ends)

    def _know(self, started: Started) -> None:
        self.facts = started.facts
        self._token_bytes, self._token_ends = started.token_bytes, started.token_ends

    # Requests.

    def submit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request and return the stream of its answer; waits until it is accepted.

        Raises:
            RequestError: the request is invalid, too long, in quarantine or cannot be sent, or the
                queue is full.
            EngineError: the process cannot be reached now, or failed for good.
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
            RequestError: the request is invalid, too long, in quarantine or cannot be sent, or the
                queue is full.
            EngineError: the process cannot be reached now, or failed for good.
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
        ticket = self._quarantine.enter(request)
        try:
            with self._lock:
                connection = self._present()
                if self._is_draining:
                    raise closing_error()
                number = next(self._numbers)
                opened = OpenRequest(number, request, admit, connection, self._who, settled, ticket)
                self._requests[opened.number] = opened
            try:
                connection.send(Submit(opened.number, request, admit is not None))
            except NotSerializable as error:
                with self._lock:
                    self._requests.pop(opened.number, None)
                raise self._not_sent(str(error)) from None
        except VlmkitError:
            self._quarantine.leave(ticket, is_answered=False)
            raise
        return opened

    def _not_sent(self, what: str) -> RequestError:
        return RequestError(
            f"the request holds {what}, which {self._who} cannot send to its process",
            code="not_serializable",
            hint="serve the model without this runner",
        )

    def _present(self) -> Connection:
        if self._failure is not None:
            raise EngineFailed(str(self._failure), hint=self._failure.hint)
        if self._closing.is_set():
            raise closing_error()
        if self._connection is None:
            raise self._peer.absent()
        return self._connection

    # Calls.

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return the tokens of a request's prompt, which the process builds.

        Raises:
            RequestError: the request is invalid, or cannot be sent.
            EngineError: the process cannot be reached now, or failed for good.
        """
        tokens: PromptTokens = await self._acall(lambda number: Tokenize(number, request))
        return tokens

    def detokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens; waits for the process.

        Raises:
            RequestError: a token is not in the vocabulary.
            EngineError: the process cannot be reached now, or failed for good.
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
            connection = self._present()
            number = next(self._numbers)
            self._calls[number] = answer
        try:
            connection.send(message_of(number))
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
            connection = self._connection
            if connection is not None:
                connection.send(Abort(number))
            raise

    # State.

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered: there is a connection, and it is not being closed."""
        return self._connection is not None and not self._closing.is_set()

    @property
    def _has_connection(self) -> bool:
        return self._connection is not None

    @property
    def is_restarting(self) -> bool:
        """Whether the connection has ended, and another one is made."""
        return self._connection is None and self._failure is None and not self._closing.is_set()

    @property
    def is_full(self) -> bool:
        """Whether a new request would be refused because the queue of the process is full."""
        return self._state.is_full

    def stats(self) -> RunnerStats:
        """Return the last statistics of the process, and the requests accepted since then.

        A request counts as open until the process reports the counters with its end. Counters
        include those of processes before it.
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
        """Call a function with the error when the runner fails for good; at once if it has."""
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
        is_empty = not self._peer.is_owned or self._has_drained(timeout_s)
        while self._requests and time.monotonic() < deadline:
            time.sleep(0.002)
        return is_empty and not self._requests

    def _has_drained(self, timeout_s: float) -> bool:
        """Drain the process, and return whether all its requests ended in time."""
        try:
            _, answer = self._call(lambda number: Drain(number, max(0.0, timeout_s)))
            return bool(answer.result())
        except EngineError:  # no process runs, and so no request
            return True

    def close(self) -> None:
        """Abort all requests, and end the connection; a second call does nothing."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
            connection = self._connection
        if connection is not None and self._peer.is_owned:
            connection.send(Close())
            connection.close(CLOSE_S)
        elif connection is not None:
            self._abort_all()
            connection.close()
        if self._observers is not None:
            self._observers.close()

    def _abort_all(self) -> None:
        """Abort all requests, and wait for their ends."""
        for opened in list(self._requests.values()):
            opened.abort()
        deadline = time.monotonic() + CLOSE_S
        while self._requests and self._connection is not None and time.monotonic() < deadline:
            time.sleep(0.002)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # The connection.

    def _adopt(self, connection: Connection) -> None:
        """Send requests through a connection from now on."""
        wakeups = Wakeups()
        with self._lock:  # which close() takes before it closes the connection
            if not self._closing.is_set():
                self._connection = connection
                self._started_s = time.monotonic()
                self._is_crash_noted = False
                connection.run(
                    lambda message: self._receive(message, wakeups),
                    wakeups.flush,
                    lambda: self._ended(connection, wakeups),
                )
                return
        connection.close()

    def _receive(self, message: Any, wakeups: Wakeups) -> None:
        """Deliver a message of the process; runs in a thread of the connection."""
        if isinstance(message, News):
            for entry in message.entries:
                self._deliver(entry, wakeups)
        elif isinstance(message, Demanded):
            if (opened := self._requests.get(message.number)) is not None:
                opened.decide(message.demand)
        elif isinstance(message, Refused | Malformed):
            self._refused(message, wakeups)
        elif isinstance(message, Lost):
            self._lose(message, wakeups)
        elif isinstance(message, Tokenized | Detokenized | Drained):
            self._answered(message)
        elif isinstance(message, State):
            self._adjust_counters(message)
            self._state, self._uncounted = message, {}
        elif self._observers is not None:
            self._observe(message, self._observers)

    def _observe(self, message: Any, observers: ObserverDispatch) -> None:
        """Pass what the engine did on to the observers of this process."""
        if isinstance(message, Steps):
            for step in message.steps:
                observers.notify("step", step)
        elif isinstance(message, Blocks) and observers.cache_feed is not None:
            if not self._has_cache_events:
                self._has_cache_events = True
                observers.start_cache_events()
            observers.cache_feed.apply(message.change)

    def _adjust_counters(self, state: State) -> None:
        """Count nothing twice when the process is still the one of the last connection."""
        before, self._last_counters = self._last_counters, {}
        now = state.stats.counters
        if before and not self._peer.is_owned and all(now.get(k, 0) >= before[k] for k in before):
            self._past.subtract(before)

    def _deliver(self, entry: Accepted | TokenEntry | Entry, wakeups: Wakeups) -> None:
        """Deliver news of one request."""
        if (opened := self._requests.get(entry.number)) is None:
            return
        if isinstance(entry, Accepted):
            self._uncounted[entry.number] = opened
            opened.accept(entry, self.facts, self._observers, wakeups)
        elif opened.add(entry, wakeups):
            self._requests.pop(entry.number, None)
            self._quarantine.leave(opened.ticket, is_answered=not opened.is_aborted)

    def _refused(self, message: Refused | Malformed, wakeups: Wakeups) -> None:
        if isinstance(message, Malformed):
            message = Refused(message.number, self._not_sent("a value of a wrong type"))
        if isinstance(message.error, QueueFull):
            self._state = replace(self._state, is_full=True)
        if isinstance(message.error, EngineFailed):
            self._note_crash(self._requests.values())
        if (opened := self._requests.pop(message.number, None)) is not None:
            is_answered = isinstance(message.error, RequestError)
            self._quarantine.leave(opened.ticket, is_answered=is_answered)
            opened.fail(message.error, wakeups, message)
        if (answer := self._calls.pop(message.number, None)) is not None:
            _fail(answer, message.error)

    def _lose(self, message: Lost, wakeups: Wakeups) -> None:
        """Fail what one of several processes had in progress, and suspect these requests."""
        opened = [
            each for n in message.numbers if (each := self._requests.pop(n, None)) is not None
        ]
        self._quarantine.crash([(each.request, each.ticket) for each in opened])
        for each in opened:
            each.fail(copy(message.error), wakeups)
        for number in message.numbers:
            if (answer := self._calls.pop(number, None)) is not None:
                _fail(answer, copy(message.error))

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

    def _ended(self, connection: Connection, wakeups: Wakeups) -> None:
        """Fail the requests of a connection that ended, and make another one."""
        reason = connection.reason
        if self._observers is not None and self._has_cache_events:
            self._observe(Blocks(CacheChange(is_cleared=True)), self._observers)
        with self._lock:
            self._connection = None
            requests, self._requests = self._requests, {}
            calls, self._calls = self._calls, {}
            stats = self._state.stats
            self._past.update(stats.counters)
            self._last_counters = stats.counters
            zeros = dict.fromkeys(stats.counters, 0)
            self._state = State(replace(NO_STATS, counters=zeros), is_full=False)
            self._uncounted = {}
            is_closing = self._closing.is_set()
        error = closing_error() if is_closing else self._peer.lost(reason)
        if not is_closing:
            self._note_crash(requests.values())
        for opened in requests.values():
            opened.fail(copy(error), wakeups)
        for answer in calls.values():
            _fail(answer, copy(error))
        wakeups.flush()
        if is_closing:
            return
        log.error("model %r: %s; a new connection is made", self.facts.name, error)
        self._begin_again(reason)

    def _note_crash(self, requests: Iterable[OpenRequest]) -> None:
        """Suspect the requests in progress, once for each connection, before any has its error."""
        if not self._is_crash_noted:
            self._is_crash_noted = True
            self._quarantine.crash([(each.request, each.ticket) for each in list(requests)])

    def _begin_again(self, reason: str) -> None:
        """Make a connection in a thread."""
        threading.Thread(
            target=self._connect_again, args=(reason,), name="vlmkit-reconnect", daemon=True
        ).start()

    def _connect_again(self, reason: str) -> None:
        logged = ""
        for pause_s in self._peer.pauses(time.monotonic() - self._started_s):
            if self._closing.wait(pause_s):
                return
            try:
                connection, started = self._peer.connect(_ignore)
            except (VlmkitError, OSError) as error:
                reason = str(error)
                if reason != logged:
                    log.warning("model %r: no connection: %s", self.facts.name, error)
                logged = reason
                continue
            if started.facts != self.facts:
                connection.close()
                self._give_up(f"{self._who}: the facts of its process changed after a restart")
                return
            self._adopt(connection)
            return
        self._give_up(self._peer.given_up(reason))

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
