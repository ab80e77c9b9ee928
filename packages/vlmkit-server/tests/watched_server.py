"""A real server process that measures how long its event loop stops, and where.

A stop is the time between two ticks of the loop, limited to the CPU time of this process. Other
processes of the machine therefore cause no stops, but another thread that holds a lock of Python
does.
"""

import asyncio
import contextlib
import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from running_server import Process, eventually, listening, mock_pipeline

from vlmkit_server.run import Server, serve
from vlmkit_server.settings.server import ServerSettings

TICK_S = 0.005
MIN_STOP_S = 0.05  # shorter stops are ignored
TRACE_AFTER_S = 0.15  # after this time, the stacks of all threads are written


class Stop(NamedTuple):
    """One stop of the loop.

    Attributes:
        stop_s: how long this process caused it.
        wall_s: how long it took.
        loop_s: CPU time of the loop's own thread.
    """

    stop_s: float
    wall_s: float
    loop_s: float


class Watch:
    """Ticks in a loop and records missed ticks; a thread records the stacks.

    ``faulthandler`` would record them while the interpreter lock is held, but it reads frames that
    change meanwhile, which can crash the process.
    """

    def __init__(self) -> None:
        self._traces: list[str] = []
        self._stops: list[Stop] = []
        self._num_ticks = 0
        self._past = (0.0, 0.0, 0.0)

    def start(self) -> None:
        self._past = self._now()
        self._tick(asyncio.get_running_loop())
        threading.Thread(target=self._trace, daemon=True).start()

    def _trace(self) -> None:
        traced = 0
        while True:
            time.sleep(TRACE_AFTER_S / 2)
            num_ticks, since_s = self._num_ticks, time.perf_counter() - self._past[0]
            if since_s > TRACE_AFTER_S and num_ticks != traced:
                traced = num_ticks
                frames = sys._current_frames().values()
                self._traces += ["".join(traceback.format_stack(frame)) for frame in frames]

    def report(self) -> str:
        """Return the stops and stacks since the last call, as JSON."""
        stops, self._stops = self._stops, []
        traces, self._traces = self._traces, []
        report = {"stops": stops, "ticks": self._num_ticks, "traces": "\n".join(traces)}
        return json.dumps(report)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._now()
        wall_s, process_s, loop_s = (new - old for new, old in zip(now, self._past, strict=True))
        if (stop_s := min(wall_s - TICK_S, process_s)) > MIN_STOP_S:
            self._stops.append(Stop(stop_s, wall_s, loop_s))
        self._past, self._num_ticks = now, self._num_ticks + 1
        loop.call_later(TICK_S, self._tick, loop)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), time.thread_time()


class Watched(Server):
    """A server that prints its stops for each line on its standard input."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        watch = Watch()
        watch.start()
        threading.Thread(target=self._report, args=(watch,), daemon=True).start()

    @staticmethod
    def _report(watch: Watch) -> None:
        for _ in sys.stdin:
            print(watch.report(), flush=True)


class WatchedProcess(Process):
    """The process, seen from outside."""

    @property
    def address(self) -> tuple[str, int]:
        """The address on which it listens."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def stops(self) -> list[Stop]:
        """Return the stops since the last call, and print their stacks."""
        report = self.report()
        for stop in sorted(map(Stop._make, report["stops"]), reverse=True)[:5]:
            print(f"stopped for {stop.stop_s:.3f} s of {stop.wall_s:.3f}, loop {stop.loop_s:.3f}")
        print(report["traces"][:20_000])
        return [Stop(*each) for each in report["stops"]]

    def longest_stop_s(self) -> float:
        return max((stop.stop_s for stop in self.stops()), default=0.0)

    def report(self) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def memory_bytes(self) -> int:
        """Return its memory where the system tells it; 0 elsewhere."""
        report = Path(f"/proc/{self.process.pid}/statm")
        return int(report.read_text().split()[1]) * mmap.PAGESIZE if report.exists() else 0


@contextmanager
def watched(folder: Path, **settings: Any) -> Iterator[WatchedProcess]:
    """Run a server in front of the mock model, with settings of the server."""
    log = folder / "log"
    command = [sys.executable, __file__, json.dumps(settings)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stderr=file, stdin=pipe, stdout=pipe, env=environment) as started,
    ):
        try:
            eventually(lambda: started.poll() is not None or listening(log) is not None)
            found = listening(log)
            assert found, log.read_text()
            server = WatchedProcess(started, found[1], log)
            with server.client:
                assert eventually(lambda: server.status() == 200)
                server.report()
                yield server
        finally:
            started.kill()


def main() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with contextlib.suppress(KeyboardInterrupt):
        serve_watched({"mock": mock_pipeline}, json.loads(sys.argv[1]))


def serve_watched(models: Any, settings: dict[str, Any]) -> None:
    import msgspec

    import vlmkit_server.run

    vlmkit_server.run.Server = Watched  # type: ignore[misc]
    serve(models, msgspec.convert({"port": 0} | settings, ServerSettings))


if __name__ == "__main__":
    main()
