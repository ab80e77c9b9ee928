"""The encoder: sends pictures to processes, started when they are needed and replaced if they die.

A process that crashes or hangs fails the requests whose pictures it had, and no others. Each
process has one call of ``encode`` at a time, so there are as many calls at once as processes.
"""

import queue
import subprocess
import sys
import threading
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np

from vlmkit.errors import EngineError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_yourname import worker


class ProcessEncoder:
    """Computes features in other processes: a :class:`.MediaEncoder`.

    Args:
        timeout_s: time that one batch may take.
        program: what is started; frames go to its input and come from its output.
        num_processes: how many are started at most.

    Attributes:
        max_concurrency: how many calls of ``encode`` may run at once.
    """

    identity = "vlmkit-yourname 1"
    media_kinds = frozenset({"image"})

    def __init__(
        self, timeout_s: float = 60.0, program: Seq[str] = (), num_processes: int = 1
    ) -> None:
        self.max_concurrency = num_processes
        self._workers = [_Worker(timeout_s, program) for _ in range(num_processes)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for each in self._workers:
            self._idle.put(each)

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each picture, in order.

        Raises:
            EngineError: the process ended, or took too long; the next call starts another.
        """
        if not slots:
            return []
        own = self._idle.get()
        try:
            return own.encode(slots)
        finally:
            self._idle.put(own)

    def close(self) -> None:
        """End the processes."""
        for each in self._workers:
            each.close()


class _Worker:
    """One process, which has one call at a time."""

    def __init__(self, timeout_s: float, program: Seq[str]) -> None:
        self._timeout_s = timeout_s
        self._program = program or (sys.executable, "-P", str(Path(worker.__file__)))
        self._process: subprocess.Popen[bytes] | None = None

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each picture, in order.

        Raises:
            EngineError: the process ended, or took too long; the next call starts another.
        """
        process = self._started()
        clock = threading.Timer(self._timeout_s, process.kill)
        clock.start()
        try:
            return [_features(slot, self._asked(process, slot)) for slot in slots]
        except (OSError, EOFError) as error:
            self.close()
            raise EngineError(
                "the process that encodes pictures ended, or took too long"
            ) from error
        finally:
            clock.cancel()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()  # closes the pipes and waits

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                self._program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        return self._process

    def _asked(self, process: "subprocess.Popen[bytes]", slot: MediaSlot) -> bytes:
        """Return what the process makes of one picture."""
        if process.stdin is None or process.stdout is None:
            raise EOFError
        worker.write(process.stdin, np.from_dlpack(slot.inputs["digest"]).tobytes())
        process.stdin.flush()
        found = worker.read(process.stdout)
        if found is None or len(found) != slot.num_features * worker.HIDDEN * 4:
            raise EOFError
        return found


def _features(slot: MediaSlot, content: bytes) -> MediaFeatures:
    """Return features with what the model's engine wants besides: copies of the inputs."""
    rows: Any = np.frombuffer(bytearray(content), np.float32).reshape(slot.num_features, -1)
    extra: Any = {name: np.array(np.from_dlpack(array)) for name, array in slot.inputs.items()}
    num_bytes = rows.nbytes + sum(array.nbytes for array in extra.values())
    return MediaFeatures(slot.num_features, rows, extra, num_bytes)
