"""The server under attack: a process of its own, measured from outside.

CPU time and memory are the sums over all of its processes, read from ``/proc``.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from attack.bodies import MODEL, SPARE, Sent

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
POLL_S = 0.05
ANSWER_S, REST_S = 30.0, 10.0
NUM_TOGETHER = 16
FIELDS_PLUGIN = Path(__file__).parents[2] / "packages/vlmkit-server/tests/dry_plugin.py"
CONFIG = """
[[models]]
model = "mock"
name = "{model}"

[[models]]
model = "mock"
name = "{spare}"
load = "use"

{more}
[plugins]
files = [{plugin}]

[sampler]
use = "dry"

[pipeline]
feature_cache_bytes = 32_000_000
constraint_cache_bytes = 16_000_000

[media_loaders.pdf]
timeout_s = 1.5
memory_bytes = 400_000_000

[server]
port = 0
allow_generate = true
drain_timeout_s = 5

[server.data]
folder = "data"

[server.fleet]
manage = true
"""


class Answer(NamedTuple):
    """What came back; status 0 when the connection ended without an answer."""

    status: int
    headers: dict[str, str]
    content: bytes


class Cost(NamedTuple):
    """What a request took of the server."""

    cpu_s: float
    peak_bytes: int
    wall_s: float
    sent_bytes: int = 0


class Target:
    """A running server, which can be restarted.

    Args:
        folder: its working directory, with its config and log.
        options: of the command line.
    """

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self._folder, self._options = folder, options
        self.log, self.port = folder / "log", 0
        self.process: subprocess.Popen[bytes]
        self._peak_bytes = 0
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(NUM_TOGETHER)
        self.start()
        threading.Thread(target=self._poll, daemon=True).start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        command = [sys.executable, "-m", "vlmkit", "serve", "--config", "vlmkit.toml"]
        self.log.unlink(missing_ok=True)
        with self.log.open("wb") as said:
            self.process = subprocess.Popen(
                [*command, *self._options], stderr=said, cwd=self._folder
            )
        self.port = _port(self.process, self.log)
        while self.send(Sent("GET", "/readyz", {}, b"")).status != 200:
            time.sleep(0.1)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.process.kill()
        self.process.wait()
        self.start()

    def close(self) -> None:
        """End it, as a process manager does."""
        self._is_over.set()
        self._pool.shutdown()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def is_at_rest(self, timeout_s: float = REST_S) -> bool:
        """Wait until the server uses no CPU time; return whether that came in time."""
        deadline = time.monotonic() + timeout_s
        while self._taken_in(0.2) > 0.1:
            if time.monotonic() > deadline or self.process.poll() is not None:
                return False
        return self.process.poll() is None

    def processes(self) -> list[int]:
        """Return the ids of all processes of the server."""
        found = [self.process.pid]
        for process_id in found:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{process_id}/task").iterdir():
                    found += [int(child) for child in (task / "children").read_text().split()]
        return found

    def cpu_s(self) -> float:
        """Return the CPU time of all processes, ended children included."""
        return sum(map(cpu_ticks, self.processes())) * TICK_S

    def memory_bytes(self) -> int:
        """Return the memory of all processes."""
        return sum(map(resident_bytes, self.processes()))

    def send(self, sent: Sent, timeout_s: float = 120) -> Answer:
        """Send a request on a new connection and read the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.putrequest(sent.method, sent.path, skip_accept_encoding=True)
            for name, value in sent.headers.items():
                connection.putheader(name, value.encode("utf-8", "surrogatepass"))
            connection.putheader("content-length", str(len(sent.content)))
            connection.endheaders()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send(sent.content)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, headers, answer.read())
        except (OSError, http.client.HTTPException):
            return Answer(0, {}, b"")
        finally:
            connection.close()

    def measured(self, sent: Sent) -> tuple[Answer, Cost]:
        """Send a request; return the answer and the cost until the server is idle again."""
        (answer,), cost = self.measured_together([sent])
        return answer, cost

    def measured_together(self, sent: Sequence[Sent]) -> tuple[list[Answer], Cost]:
        """Send requests concurrently; return the answers and their total cost."""
        self._peak_bytes = before_bytes = self.memory_bytes()
        cpu_s, started = self.cpu_s(), time.monotonic()
        answers = [*self._pool.map(partial(self.send, timeout_s=ANSWER_S), sent)]
        wall_s = time.monotonic() - started
        if self.cpu_s() - cpu_s > 0.1:  # it may work on after its answer
            deadline = started + wall_s + ANSWER_S
            while self._taken_in(0.05) > 0.02 and time.monotonic() < deadline:
                pass
        taken = max(0.0, self.cpu_s() - cpu_s)
        peak_bytes = max(0, self._peak_bytes - before_bytes)
        sent_bytes = sum(len(each.content) for each in sent)
        return answers, Cost(taken, peak_bytes, wall_s, sent_bytes)

    def _taken_in(self, pause_s: float) -> float:
        before = self.cpu_s()
        time.sleep(pause_s)
        return self.cpu_s() - before

    def _poll(self) -> None:
        while not self._is_over.wait(POLL_S):
            self._peak_bytes = max(self._peak_bytes, self.memory_bytes())


def cpu_ticks(process_id: int) -> int:
    """Return the CPU time of a process and of its ended children; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))


def resident_bytes(process_id: int) -> int:
    """Return the memory that a process has; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError):
        return 0


@contextmanager
def target(folder: Path, *options: str, model: str = MODEL) -> Iterator[Target]:
    """Run ``vlmkit serve`` in a folder with every API switched on.

    Args:
        folder: an empty folder.
        model: one that is served beside the mock.
        options: more command line options.
    """
    plugin = json.dumps(str(FIELDS_PLUGIN))
    more = "" if model == MODEL else f"[[models]]\nmodel = {json.dumps(model)}\n"
    config = CONFIG.format(model=MODEL, spare=SPARE, plugin=plugin, more=more)
    (folder / "vlmkit.toml").write_text(config)
    server = Target(folder, options)
    try:
        yield server
    finally:
        server.close()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    deadline = time.monotonic() + 300
    while not (found := re.search(r"listening on \S+:(\d+)\s", log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        time.sleep(0.1)
    return int(found[1])


def document(server: Target) -> Any:
    """Return the server's OpenAPI document."""
    return json.loads(server.send(Sent("GET", "/openapi.json", {}, b"")).content)
