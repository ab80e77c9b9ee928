"""The runner of a model whose replicas Ray Serve runs."""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from vlmkit.errors import EngineError, WireError, WorkerLost
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Admit, AnswerStream
from vlmkit.running.fleet.stream import FleetStream
from vlmkit.running.remote_runner.messages import MessageReader, Started
from vlmkit.running.remote_runner.runner import RemoteRunner
from vlmkit.running.replicas import admitted_once
from vlmkit.types.request import Request
from vlmkit_ray.connection import RayConnection, ReplicaLostError
from vlmkit_ray.model_replica import MAX_MESSAGE_BYTES

MAX_REPLICAS = 3
"""The most replicas that one request is sent to, one after another."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0


class RayPeer:
    """Connects to the replicas of a model.

    Args:
        handle: their deployment.
        model: what clients call the model.
        start_timeout_s: time for the first replica to be there.
    """

    is_owned = False

    def __init__(self, handle: Any, model: str, start_timeout_s: float) -> None:
        self.who = f"model {model!r} on Ray Serve"
        self._handle = handle
        self._model = model
        self._start_timeout_s = start_timeout_s

    def connect(self, on_stage: Callable[[str], None]) -> tuple[RayConnection, Started]:
        """Ask a replica what it runs, and return a connection to all that run the same.

        Raises:
            EngineError: no replica is there in time, or its answer is useless.
        """
        on_stage("replica")
        content = self._described()
        try:
            (started,) = MessageReader(MAX_MESSAGE_BYTES).feed(content)
        except (WireError, ValueError):
            raise self._refused("it sent something else than its facts") from None
        connection = RayConnection(self._handle, self.who, hashlib.sha256(content).hexdigest())
        return connection, replace(started, facts=replace(started.facts, name=self._model))

    def _described(self) -> bytes:
        response = self._handle.describe.remote()
        try:
            return bytes(response.result(timeout_s=self._start_timeout_s))
        except TimeoutError:
            response.cancel()
            raise self._refused("no replica is there in time") from None
        except Exception as error:  # noqa: BLE001 - Ray may raise anything
            raise self._refused(f"no replica answers: {type(error).__name__}") from None

    def _refused(self, reason: str) -> EngineError:
        return EngineError(f"{self.who}: {reason}", hint="see the log of the replicas")

    def pauses(self, connected_s: float) -> Iterator[float]:  # noqa: ARG002
        """Yield growing pauses without end: Ray Serve starts new replicas by itself."""
        pause_s = MIN_PAUSE_S
        while True:
            yield pause_s
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    def lost(self, reason: str) -> EngineError:
        """Return the error of a request whose connection ended."""
        return WorkerLost(f"{self.who}: {reason}")

    def absent(self) -> EngineError:
        """Return the error of a request while there is no connection."""
        return WorkerLost(f"{self.who}: no replica is connected")

    def given_up(self, reason: str) -> str:
        """Return why the runner failed for good."""
        return f"{self.who}: {reason}"


class RayRunner(RemoteRunner):
    """Answers requests with the replicas of a model.

    The request router of Ray Serve selects a replica. If one is lost, another one answers
    with the same seed, and the reader gets what follows the part that it has.

    Args:
        peer: how to connect.
        observers: receive the events of requests, by name.
    """

    def __init__(self, peer: RayPeer, observers: Mapping[str, Observer]) -> None:
        super().__init__(peer, observers)

    def submit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request and return the stream of its answer; waits until it is accepted.

        Args:
            request: the request.
            admit: called once, also if a second replica gets the request.

        Raises:
            RequestError: the request is invalid, too long or in quarantine, or the queue is full.
            EngineError: no replica can answer.
        """
        attempts = _Attempts(request, admit)
        return self._lasting(attempts, self._start(attempts))

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request without blocking the event loop; return when it is accepted.

        Args:
            request: the request.
            admit: called once, also if a second replica gets the request.

        Raises:
            RequestError: the request is invalid, too long or in quarantine, or the queue is full.
            EngineError: no replica can answer.
        """
        attempts = _Attempts(request, admit)
        while True:
            attempts.begin()
            try:
                stream = await super().asubmit(attempts.request, attempts.admit)
            except ReplicaLostError:
                if attempts.are_over:
                    raise
            else:
                return self._lasting(attempts, stream)

    def _start(self, attempts: "_Attempts") -> AnswerStream:
        while True:
            attempts.begin()
            try:
                return super().submit(attempts.request, attempts.admit)
            except ReplicaLostError:
                if attempts.are_over:
                    raise

    def _lasting(self, attempts: "_Attempts", stream: AnswerStream) -> AnswerStream:
        """Return a stream that outlasts the replica."""

        def start_again(error: EngineError) -> AnswerStream:
            if attempts.are_over or not isinstance(error, ReplicaLostError):
                raise error
            return self._start(attempts)

        return FleetStream(stream, start_again, _ignore)


class _Attempts:
    """A request, and how many replicas had it.

    Attributes:
        request: the request, with an identity.
        admit: decides on its demand, once.
    """

    def __init__(self, request: Request, admit: Admit | None) -> None:
        self.request = request if request.id else replace(request, id=f"req-{secrets.token_hex(8)}")
        self.admit = admitted_once(admit)
        self._num = 0

    def begin(self) -> None:
        """Count another replica."""
        self._num += 1

    @property
    def are_over(self) -> bool:
        """Whether no further replica may get the request."""
        return self._num >= MAX_REPLICAS


def _ignore() -> None:
    pass
