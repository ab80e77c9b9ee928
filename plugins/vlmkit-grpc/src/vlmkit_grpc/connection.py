"""A gateway's connection to a worker: a session, and a call for each large request.

Each call has a thread that reads it; gRPC has one that sends. No process may be forked once this
module has made a call, because gRPC's threads would not exist in it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias

import grpc

from vlmkit.errors import EngineError, WireError
from vlmkit.running.remote_runner.messages import (
    MessageReader,
    Refused,
    Submit,
    Tokenize,
    message_parts,
)
from vlmkit_grpc.credentials import Metadata
from vlmkit_grpc.pieces import pieces_of
from vlmkit_grpc.protocol.worker_pb2 import Part, Prompt
from vlmkit_grpc.protocol.worker_pb2_grpc import WorkerStub
from vlmkit_grpc.reasons import reason_of

log = logging.getLogger(__name__)

LARGE_BYTES = 2**20
"""Larger requests have a call of their own, so that no other request waits behind them."""
LOOK_S = 0.5  # between two looks at whether the worker is silent
JOIN_S = 5.0  # for a thread to end after its call
SENT_BYTES = 2**28  # what a worker may send in one message

Buffer: TypeAlias = bytes | bytearray | memoryview


class _Call:
    """One call: what is to be sent, and the thread that reads what comes."""

    def __init__(self, method: Any, metadata: Metadata) -> None:
        self._method = method
        self._metadata = metadata
        self._unsent: SimpleQueue[list[Buffer] | Prompt | None] = SimpleQueue()
        self._call: Any = None
        self._is_cancelled = False

    def send(self, parts: list[Buffer]) -> None:
        """Queue the parts of a frame; may be called while the garbage collector runs."""
        self._unsent.put(parts)

    def show(self, prompt: Prompt) -> None:
        """Queue a prompt for other gateways."""
        self._unsent.put(prompt)

    def read(self) -> Iterator[Part]:
        """Start the call and yield what comes, until it ends.

        Raises:
            grpc.RpcError: it ended otherwise than by the worker's will.
        """
        self._call = self._method(self._requests(), metadata=self._metadata)
        if self._is_cancelled:
            self._call.cancel()
        yield from self._call

    def _requests(self) -> Iterator[Part]:
        """Yield the frames in pieces, and prompts; runs in a thread of gRPC."""
        while (unsent := self._unsent.get()) is not None:
            if isinstance(unsent, Prompt):
                yield Part(prompt=unsent)
            else:
                yield from pieces_of(unsent)

    def end(self) -> None:
        """Have the call send no more."""
        self._unsent.put(None)

    def cancel(self) -> None:
        """End the call."""
        self._is_cancelled = True
        self.end()
        if self._call is not None:
            self._call.cancel()


class GrpcConnection:
    """One connection to a worker, from its session's start to its end.

    Args:
        channel: closed with the connection.
        metadata: sent with each call.
        who: the name of the worker in errors.
        max_message_bytes: the most bytes of a request.
        silence_timeout_s: time without a message after which the connection ends.
        on_prompt: gets each prompt that another gateway sent to the worker.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        metadata: Metadata,
        who: str,
        *,
        max_message_bytes: int,
        silence_timeout_s: float,
        on_prompt: Callable[[Prompt], None],
    ) -> None:
        self._channel = channel
        self._stub = WorkerStub(channel)
        self._metadata = metadata
        self._who = who
        self._max_message_bytes = max_message_bytes
        self._silence_timeout_s = silence_timeout_s
        self._on_prompt = on_prompt
        self._session = _Call(self._stub.Session, metadata)
        self._alone: dict[int, _Call] = {}
        self._delivering = threading.Lock()
        self._is_over = threading.Event()
        self._is_closing = False
        self._heard_s = time.monotonic()
        self._on_message: Callable[[Any], None] = _ignore
        self._before_wait: Callable[[], None] = _ignore_nothing
        self._reader: threading.Thread | None = None
        self.reason = "it is connected"

    def send(self, message: Any) -> None:
        """Send a message without waiting; it is lost if the connection has ended.

        Raises:
            NotSerializable: it holds a value that cannot be sent, or is too large.
        """
        parts = message_parts(message, self._max_message_bytes)
        number: int = message.number
        is_request = isinstance(message, Submit | Tokenize)
        if is_request and sum(memoryview(part).nbytes for part in parts) > LARGE_BYTES:
            call = self._alone[number] = _Call(self._stub.Answer, self._metadata)
            call.send(parts)
            if self._is_over.is_set():
                return
            threading.Thread(
                target=self._read_alone, args=(number, call), name="vlmkit-answer", daemon=True
            ).start()
            return
        self._alone.get(number, self._session).send(parts)

    def show(self, prompt: Prompt) -> None:
        """Show a prompt to other gateways, by the worker; lost if the connection has ended."""
        if not self._is_over.is_set():
            self._session.show(prompt)

    def run(
        self,
        on_message: Callable[[Any], None],
        before_wait: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        """Deliver messages in threads, one at a time, until the session ends."""
        self._on_message = on_message
        self._before_wait = before_wait
        self._reader = threading.Thread(
            target=self._read_session, args=(on_end,), name="vlmkit-answers", daemon=True
        )
        self._reader.start()
        threading.Thread(target=self._listen, name="vlmkit-heartbeat", daemon=True).start()

    def close(self, timeout_s: float = 0.0) -> None:
        """End the connection; after at most so many seconds, if the worker ends it itself."""
        self._is_closing = True
        self._is_over.wait(timeout_s)
        self._session.cancel()
        reader = self._reader
        if reader is None:
            self._channel.close()
        elif reader is not threading.current_thread():
            reader.join(JOIN_S)

    # What comes.

    def _read_session(self, on_end: Callable[[], None]) -> None:
        self.reason = self._read(self._session)
        with self._delivering:
            self._is_over.set()
        for call in list(self._alone.values()):
            call.cancel()
        on_end()
        with suppress(ValueError):  # the channel is closed already
            self._channel.close()

    def _read_alone(self, number: int, call: _Call) -> None:
        """Read the call of one request, which gets an error if it had no end."""
        reason = self._read(call)
        call.end()
        self._alone.pop(number, None)
        self._deliver([Refused(number, EngineError(f"{self._who}: {reason}"))])

    def _read(self, call: _Call) -> str:
        """Deliver the messages of a call; return why it ended."""
        reader = MessageReader(SENT_BYTES)
        try:
            for part in call.read():
                self._heard_s = time.monotonic()
                if part.HasField("prompt"):
                    self._on_prompt(part.prompt)
                self._deliver(reader.feed(part.content))
        except grpc.RpcError as error:
            return self._expiry() or reason_of(error)
        except (WireError, ValueError) as error:  # ValueError: the channel is closed
            call.cancel()
            return str(error) if isinstance(error, WireError) else "the connection is closed"
        except Exception:
            log.exception("%s: one of its messages cannot be used", self._who)
            call.cancel()
            return "one of its messages cannot be used"
        return "it ended the connection"

    def _deliver(self, messages: Iterator[Any] | list[Any]) -> None:
        with self._delivering:
            if not self._is_over.is_set():
                for message in messages:
                    self._on_message(message)
                self._before_wait()

    def _listen(self) -> None:
        """End the session of a worker that is silent for too long."""
        while not self._is_over.wait(LOOK_S):
            if self._expiry():
                self._session.cancel()
                return

    def _expiry(self) -> str:
        """Return that the worker has sent nothing for too long; empty if it has."""
        limit_s = self._silence_timeout_s
        is_silent = time.monotonic() - self._heard_s > limit_s
        return f"it was silent for {limit_s:g} s" if is_silent and not self._is_closing else ""


def _ignore(_: Any) -> None:
    pass


def _ignore_nothing() -> None:
    pass
