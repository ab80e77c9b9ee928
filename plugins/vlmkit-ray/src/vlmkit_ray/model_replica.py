"""A replica of a model: a complete pipeline in a process of Ray, and the calls that it answers.

It knows HTTP as little as a worker of vlmkit-grpc does. Ray Serve starts, checks and stops it.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

from vlmkit.cli.model_command import CommandModel
from vlmkit.errors import QueueFull
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.runner_tokens import token_table
from vlmkit.kit.traces import log_of_worker, trace_of
from vlmkit.running.fleet.waiting_tokens import OBSERVER, LoadObserver, waiting_tokens
from vlmkit.running.remote_runner.messages import Started, State, message_parts
from vlmkit.running.remote_runner.request_server import CallerLimits, RequestServer
from vlmkit_ray import autoscaling, serve_interface
from vlmkit_ray.calls import Call, Control
from vlmkit_ray.config_file import ConfigFile
from vlmkit_ray.outbox import Outbox
from vlmkit_server.settings.server import ServerSettings

log = logging.getLogger(__name__)

DECISION_S = 30.0  # for an ingress to decide about the demand of a request
MAX_MESSAGE_BYTES = 512 * 2**20
LIMITS = CallerLimits(
    is_owner=False,
    max_open=1,
    decision_s=DECISION_S,
    max_message_bytes=MAX_MESSAGE_BYTES,
    is_alone=True,
)


class ModelReplica:
    """Runs one model, and answers calls of ingresses.

    Args:
        file: the config.
        model: the name of the model.
        max_open: the most open requests.
    """

    def __init__(self, file: ConfigFile, model: str, max_open: int) -> None:
        log_of_worker()
        self._max_open = max_open
        self._servers: dict[str, RequestServer] = {}
        with ThreadPoolExecutor(1) as thread:  # this one runs an event loop
            self._runner = thread.submit(_load, file, model).result()
        self._runner.on_failure(_exit)
        table = list(token_table(self._runner))
        started = Started(self._runner.facts, b"".join(table), tuple(accumulate(map(len, table))))
        self._started = b"".join(message_parts(started, MAX_MESSAGE_BYTES))
        self._digest = hashlib.sha256(self._started).hexdigest()

    def __del__(self) -> None:
        if (runner := getattr(self, "_runner", None)) is not None:
            runner.close()

    # Calls of ingresses.

    async def describe(self) -> bytes:
        """Return the frame with the facts of the runner and the bytes of all tokens."""
        return self._started

    async def answer(self, call: Call) -> AsyncIterator[bytes]:
        """Answer one request, or one call such as tokenizing, in pieces of frames.

        Raises:
            QueueFull: as many requests are open as are allowed.
            WireError: the frame is malformed.
        """
        if len(self._servers) >= self._max_open:
            raise QueueFull(f"a replica has {self._max_open} open requests")
        outbox = Outbox()
        server = RequestServer(self._runner, outbox.write, limits=LIMITS, room=outbox.room)
        self._servers[call.key] = server
        serving = asyncio.create_task(server.serve())
        serving.add_done_callback(lambda _: outbox.close())
        try:
            server.feed(call.content)
            while piece := await outbox.piece():
                yield piece
        finally:
            server.end()
            outbox.close()
            del self._servers[call.key]
            await asyncio.shield(serving)

    async def control(self, message: Control) -> None:
        """Pass later messages of a call on; they are lost if it has ended."""
        if (server := self._servers.get(message.key)) is not None:
            server.feed(message.content)

    async def state(self) -> tuple[str, str, bytes]:
        """Return the identity of the replica, the digest of its facts, and its state as a frame."""
        state = State(self._runner.stats(), self._runner.is_full)
        frame = b"".join(message_parts(state, MAX_MESSAGE_BYTES))
        return serve_interface.name_of_this_replica(), self._digest, frame

    # Calls of Ray Serve.

    def record_replica_metadata(self) -> dict[str, str | int]:
        """Return what routers know of the replica as long as it lives."""
        return {
            serve_interface.MODEL: self._digest,
            serve_interface.CAPACITY_TOKENS: self._runner.facts.limits.capacity_tokens,
        }

    def record_routing_stats(self) -> dict[str, int | bool]:
        """Return the load, for routers."""
        return {
            serve_interface.WAITING_TOKENS: waiting_tokens(self._runner.stats()),
            serve_interface.NUM_OPEN: len(self._servers),
            serve_interface.IS_FULL: self._runner.is_full,
        }

    def record_autoscaling_stats(self) -> dict[str, int]:
        """Return the load, for the autoscaler."""
        stats = self._runner.stats()
        return {
            autoscaling.WAITING_TOKENS: waiting_tokens(stats),
            autoscaling.NUM_SEQUENCES: stats.num_running + stats.num_waiting,
            autoscaling.MAX_SEQUENCES: self._runner.facts.limits.max_sequences,
        }


def _exit(failure: BaseException) -> None:
    """End the process, whose engine failed for good.

    Ray Serve then starts another replica at once. It would route requests to this one until several
    health checks have failed.
    """
    log.critical("the engine failed, and the replica ends:\n%s", trace_of(failure))
    logging.shutdown()
    os._exit(1)


def _load(file: ConfigFile, model: str) -> Runner:
    file.check()
    chosen = CommandModel(model, file.path, (), {})
    settings = chosen.table("server", ServerSettings)
    return chosen.build({OBSERVER: LoadObserver}, settings.worker_processes)
