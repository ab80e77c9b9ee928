"""Real worker processes for tests."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import vlmkit
from mock_model import wait_until
from vlmkit.types.runner_stats import RunnerStats

READY = re.compile(r"ready: (?:the encoder of )?(\S+) at (?:grpc://)?(\S+)")
DIGEST = re.compile(r"(?:model digest|identity) (.+)")


class WorkerProcess:
    """One ``vlmkit worker`` or ``vlmkit encoder``, which has answered that it is ready.

    Attributes:
        address: where it listens, as a reference of a model names it.
        digest: the digest of its model, or the identity of the encoder.
    """

    def __init__(
        self,
        *arguments: str,
        model: str = "mock",
        listen: str = "127.0.0.1:0",
        kind: str = "worker",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "vlmkit", kind, model, "--listen", listen]
        self._process = subprocess.Popen(
            [*command, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(variables or {})},
        )
        self.lines: list[str] = []
        self.address = self._line(READY)[2]
        self.digest = self._line(DIGEST)[1]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def reference(self) -> str:
        return f"grpc://{self.address}"

    def stats(self) -> RunnerStats:
        """Return what it reports to a new gateway."""
        with vlmkit.load(self.reference, runner={"use": "grpc"}) as model:
            wait_until(lambda: model.runner._state.stats.counters)
            return model.runner.stats()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open at it."""
        stats = self.stats()
        return not stats.num_running + stats.num_waiting

    @property
    def num_sampled(self) -> int:
        """The tokens that it sampled so far."""
        return self.stats().counters["num_tokens_sampled"]

    def _line(self, form):
        for line in self._process.stderr:
            self.lines.append(line)
            if found := form.match(line):
                return found
        self._process.stderr.close()
        code = self._process.wait(60)
        raise AssertionError(f"the worker ended with {code}: {''.join(self.lines)}")

    def _read(self):
        for line in self._process.stderr:
            self.lines.append(line)

    def signal(self, number) -> None:
        self._process.send_signal(number)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it, and wait until nothing is left of it."""
        self._process.kill()
        self._process.wait(60)
        self._reader.join(60)
        self._process.stderr.close()

    def ended(self) -> int:
        """Wait for its end, and return the exit code."""
        return self._process.wait(120)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        self.kill()


@contextmanager
def worker(*arguments: str, **options: Any) -> Iterator[WorkerProcess]:
    process = WorkerProcess(*arguments, **options)
    try:
        yield process
    finally:
        process.close()


def encoder(*arguments: str, **options: Any):
    """Run an encoder."""
    return worker(*arguments, kind="encoder", **options)
