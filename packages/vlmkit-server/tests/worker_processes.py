"""The mock in worker processes, for tests of the server in front of them."""

import json
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

import vlmkit
from vlmkit.interfaces.runner import Runner

READY = re.compile(r"ready: \S+ at grpc://(\S+)")


def mocks_in_workers(num_workers: int, sections: Mapping[str, Mapping[str, Any]]) -> Runner:
    """Return a runner of workers with these settings, which end when it is closed.

    A lost worker counts as a failed engine at once.
    """
    with ExitStack() as stack:
        assignments = [f"--set={each}" for each in _assignments(sections)]
        started = [stack.enter_context(_worker(assignments)) for _ in range(num_workers)]
        reference = f"grpc://{','.join(map(_address, started))}/mock"
        runner = {"use": "grpc", "give_up_s": 0.0}
        fleet: Any = vlmkit.load(reference, runner=runner, pipeline=sections["pipeline"]).runner
        workers, close = stack.pop_all(), fleet.close

    def close_all() -> None:
        with workers:
            close()

    fleet.close = close_all
    return fleet


def _assignments(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _assignments(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}={_toml(msgspec.to_builtins(value))}"


def _toml(value: Any) -> str:
    """Return a value in TOML, on one line and without what is None."""
    if isinstance(value, Mapping):
        pairs = [f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items() if v is not None]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


@contextmanager
def _worker(assignments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a worker, and kill it in the end."""
    command = [sys.executable, "-m", "vlmkit", "worker", "mock", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *assignments], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _address(process: subprocess.Popen[str]) -> str:
    """Wait for a worker, and return where it listens."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := READY.match(line):
            break
    else:
        raise AssertionError("".join(lines))
    threading.Thread(target=deque, args=(process.stderr, 0), daemon=True).start()  # or it may wait
    return found[1]
