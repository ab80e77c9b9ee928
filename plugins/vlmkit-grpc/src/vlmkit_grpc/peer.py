"""The worker of a runner: how to connect to it, and whether it is the right one."""

import time
from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import replace
from functools import partial

import grpc

from vlmkit.errors import EngineError, WireError, WorkerLost
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.running.fleet.cache_estimate import CacheEstimate
from vlmkit.running.fleet.prompt_keys import Segment
from vlmkit.running.remote_runner.messages import MessageReader, Started, protocol
from vlmkit_grpc.addresses import WorkerAddress
from vlmkit_grpc.channel_options import client_options
from vlmkit_grpc.connection import SENT_BYTES, GrpcConnection
from vlmkit_grpc.credentials import channel_credentials, metadata_of, secret_of
from vlmkit_grpc.protocol.worker_pb2 import (
    DescribeReply,
    DescribeRequest,
    FactsRequest,
    Prompt,
)
from vlmkit_grpc.protocol.worker_pb2_grpc import WorkerStub
from vlmkit_grpc.reasons import reason_of
from vlmkit_grpc.sent_prompts import prompt_of, segments_of
from vlmkit_grpc.service import vocabulary_digest
from vlmkit_grpc.settings import GrpcSettings

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
STABLE_S = 10.0  # a connection that lasts so long is followed by a short pause


class GrpcPeer:
    """Connects to one worker, again and again, and refuses another model than the first one.

    Args:
        address: where the worker is.
        model: the name that it must give its model; empty for any.
        settings: how to connect.
        name: what clients call the model; the name that the worker gives it if empty.

    Attributes:
        expected: what the worker must state of its model; None before the first connection.
        expected_facts: the facts that its runner must have; None for those of any runner.
        num_connections: number of connections so far.
        estimate: what the caches of the worker hold, by the prompts of all gateways; a new one with
            each connection, because the worker may be another process.
    """

    is_owned = False

    def __init__(
        self, address: WorkerAddress, model: str, settings: GrpcSettings, name: str
    ) -> None:
        self.who = f"worker {address.target}"
        self._address = address
        self._model = model
        self._settings = settings
        self._name = name
        self._credentials = channel_credentials(settings, "runner")
        self._metadata = metadata_of(secret_of(settings, "runner"))
        self.expected: DescribeReply | None = None
        self.expected_facts: RunnerFacts | None = None
        self.num_connections = 0
        self.estimate = CacheEstimate(0)
        self._connection: GrpcConnection | None = None
        self._pause_s = MIN_PAUSE_S

    def connect(self, on_stage: Callable[[str], None]) -> tuple[GrpcConnection, Started]:
        """Connect to the worker, and check that it is the expected one.

        Raises:
            EngineError: it cannot be reached, or is another one.
        """
        on_stage("worker")
        settings = self._settings
        is_first = not self.num_connections
        timeout_s = settings.start_timeout_s if is_first else settings.connect_timeout_s
        channel = self._channel()
        try:
            started = self._started(WorkerStub(channel), timeout_s)
        except BaseException:
            channel.close()
            raise
        estimate = CacheEstimate(started.facts.limits.capacity_tokens)
        connection = GrpcConnection(
            channel,
            self._metadata,
            self.who,
            max_message_bytes=settings.max_message_bytes,
            silence_timeout_s=settings.silence_timeout_s,
            on_prompt=partial(_add, estimate),
        )
        self.estimate, self._connection = estimate, connection
        return connection, started

    def note(self, segments: Seq[Segment], sizes: Seq[int]) -> None:
        """Note that the worker computes a prompt, here and at all other gateways.

        Args:
            segments: its parts.
            sizes: the number of tokens of each part.
        """
        self.estimate.add(segments, sizes)
        if self._connection is not None:
            self._connection.show(prompt_of(segments, sizes))

    def _channel(self) -> grpc.Channel:
        target, options = self._address.target, client_options(self._settings.keepalive_s)
        if self._credentials is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, self._credentials, options)

    def _started(self, stub: WorkerStub, timeout_s: float) -> Started:
        """Return the facts of a worker that is the expected one."""
        deadline = time.monotonic() + timeout_s
        try:
            found: DescribeReply = stub.Describe(
                DescribeRequest(), timeout=timeout_s, metadata=self._metadata, wait_for_ready=True
            )
            self._check(found)
            reader = MessageReader(SENT_BYTES)
            left_s = max(1.0, deadline - time.monotonic())
            parts = stub.Facts(FactsRequest(), timeout=left_s, metadata=self._metadata)
            messages = [each for part in parts for each in reader.feed(part.content)]
        except grpc.RpcError as error:
            raise self._refused(reason_of(error)) from None
        except WireError as error:
            raise self._refused(str(error)) from None
        if len(messages) != 1 or not isinstance(messages[0], Started):
            raise self._refused("it sent another message than its facts")
        started: Started = messages[0]
        digest = vocabulary_digest(started)
        if digest != found.vocabulary_digest:
            raise self._differs("vocabulary", found.vocabulary_digest, digest)
        self.expected = self.expected or found
        name = self._name or started.facts.name
        facts = replace(started.facts, name=name)
        if self.expected_facts not in (None, facts):
            raise self._refused("its facts are not those of the other workers")
        self.num_connections += 1
        return replace(started, facts=facts)

    def _check(self, found: DescribeReply) -> None:
        """Refuse a worker that is not the expected one.

        Raises:
            EngineError: its protocol, model or vocabulary is another one.
        """
        if found.protocol != protocol():
            raise self._refused(
                f"it is vlmkit {found.version} with the protocol {found.protocol}, and this is "
                f"{protocol()}",
                hint="install the same version of vlmkit at both ends",
            )
        if self._model not in ("", found.model):
            raise self._differs("model", repr(self._model), repr(found.model))
        expected = self.expected
        digest = self._settings.model_digest or (expected.model_digest if expected else "")
        if digest and found.model_digest != digest:
            raise self._differs("model", digest, found.model_digest)
        if expected is not None and found.vocabulary_digest != expected.vocabulary_digest:
            raise self._differs("vocabulary", expected.vocabulary_digest, found.vocabulary_digest)

    def _differs(self, what: str, expected: str, found: str) -> EngineError:
        return self._refused(f"its {what} is {found}, and {expected} is expected")

    def _refused(self, reason: str, hint: str | None = None) -> EngineError:
        return EngineError(f"{self.who}: {reason}", hint=hint or "see the log of the worker")

    def pauses(self, connected_s: float) -> Iterator[float]:
        """Yield pauses that double with each attempt in a row, until the time for them is over."""
        if connected_s > STABLE_S:
            self._pause_s = MIN_PAUSE_S
        most_s = self._settings.give_up_s
        deadline = None if most_s is None else time.monotonic() + most_s
        while deadline is None or time.monotonic() < deadline:
            yield self._pause_s
            self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)

    def lost(self, reason: str) -> EngineError:
        """Return the error of a request whose connection ended."""
        return WorkerLost(f"{self.who} is lost ({reason})")

    def absent(self) -> EngineError:
        """Return the error of a request while there is no connection."""
        return WorkerLost(f"{self.who} is not connected")

    def given_up(self, reason: str) -> str:
        """Return why the runner failed for good."""
        return f"{self.who} did not return, at last because {reason}"


def _add(estimate: CacheEstimate, prompt: Prompt) -> None:
    """Add a prompt of another gateway to an estimate.

    Raises:
        WireError: it is malformed.
    """
    segments = segments_of(prompt)
    estimate.add(segments, [each.num_tokens for each in segments])
