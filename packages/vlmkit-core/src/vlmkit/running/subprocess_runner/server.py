"""The child's end: reads the messages of its caller from a pipe, and writes answers to another."""

import logging
import threading
from collections.abc import Iterable
from typing import BinaryIO

from vlmkit.errors import WireError
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.traces import trace_of
from vlmkit.running.remote_runner.messages import CODEC
from vlmkit.running.remote_runner.request_server import BlockRecorder, RequestServer, StepRecorder
from vlmkit.wire.frames import Buffer, frame_parts

log = logging.getLogger(__name__)

READ_BYTES = 2**16  # what a pipe holds


class ChildServer:
    """Serves one caller through pipes until it closes the runner or is gone.

    Args:
        runner: answers the requests.
        requests: the pipe of messages from the caller, unbuffered.
        answers: the pipe of messages to the caller.
        steps: collects steps for the caller; None if it has no use for them.
        blocks: receives cache events for the caller; None if it has no use for them.
    """

    def __init__(
        self,
        runner: Runner,
        requests: BinaryIO,
        answers: BinaryIO,
        steps: StepRecorder | None = None,
        blocks: BlockRecorder | None = None,
    ) -> None:
        self._runner = runner
        self._requests = requests
        self._answers = answers
        self._steps = steps
        self._blocks = blocks
        self._writing = threading.Lock()
        self._server: RequestServer | None = None

    async def serve(self) -> None:
        """Serve, and return when the process has to exit."""
        self._server = server = RequestServer(self._runner, self._write, self._steps)
        threading.Thread(
            target=self._read, args=(server,), name="vlmkit-requests", daemon=True
        ).start()
        if self._blocks is not None:
            self._blocks.start(lambda message: self._write(frame_parts(CODEC.encode(message))))
        await server.serve()

    def _read(self, server: RequestServer) -> None:
        try:
            while content := self._requests.read(READ_BYTES):
                server.feed(content)
        except (OSError, WireError, MemoryError) as error:
            log.debug("no more messages are read:\n%s", trace_of(error))
        finally:
            server.end()

    def _write(self, parts: Iterable[Buffer]) -> None:
        """Write whole frames; may be called in any thread."""
        try:
            with self._writing:
                self._answers.writelines(parts)
                self._answers.flush()
        except OSError:  # the caller is gone
            if self._server is not None:
                self._server.end()
