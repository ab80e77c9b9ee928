"""Starts a server in its own process, waits until it answers, and ends it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def free_port() -> int:
    """Return a free port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Address(str):
    """The URL of a server's API, with the server's process."""

    __slots__ = ("process_id",)
    process_id: int

    def resident_bytes(self, kind: str = "VmRSS") -> int:
        """Return the memory of the process, or one kind of it by its Linux name."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        kib = next(line for line in status.splitlines() if line.startswith(kind)).split()[1]
        return int(kib) * 1024

    def cpu_s(self) -> float:
        """Return the CPU time of the process."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def maps(self, name: str) -> bool:
        """Return whether the process maps a library or file of this name."""
        return name in Path(f"/proc/{self.process_id}/maps").read_text()


@contextlib.contextmanager
def running(
    command: list[str], port: int, health: str, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Address]:
    """Run a server; yield the address of its API once ``health`` answers 200."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        try:
            _wait(f"http://127.0.0.1:{port}{health}", process, log)
            address = Address(f"http://127.0.0.1:{port}/v1")
            address.process_id = process.pid
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def vlmkit(
    model: str, port: int, log: Path, *options: str
) -> contextlib.AbstractContextManager[Address]:
    """Serve a model with vlmkit."""
    command = [sys.executable, "-m", "vlmkit", "serve", model, "--set", f"server.port={port}"]
    return running([*command, *options], port, "/readyz", log)


def transformers(
    model: str,
    port: int,
    log: Path,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
) -> contextlib.AbstractContextManager[Address]:
    """Serve a model with ``transformers serve``, in float32 on the CPU, with batching.

    By default, its cache takes most of the memory of the machine.
    """
    command = [str(Path(python).with_name("transformers")), "serve", model]
    command += ["--port", str(port), "--host", "127.0.0.1", "--dtype", "float32", "--device", "cpu"]
    command += ["--continuous-batching", "--cb-num-blocks", "64", "--cb-max-batch-tokens", "1024"]
    return running(command, port, "/health", log, env)


def load(url: str, model: str, **options: object) -> dict[str, Any]:
    """Run the load generator in its own process and return its figures."""
    flags = [f for k, v in options.items() for f in (f"--{k.replace('_', '-')}", str(v))]
    command = [sys.executable, str(HERE / "client.py"), url, model, *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{model} did not answer: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{url} did not answer in time: {log.read_text()[-2000:]}")
