"""The processes that a server started, as Linux lists them."""

import contextlib
from pathlib import Path

from running_server import Process

RUNNER = "vlmkit.assembly.runner_process"


def _parents() -> dict[int, int]:
    """Return the parent of every running process."""
    found = {}
    for stat in (entry / "stat" for entry in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                found[int(stat.parent.name)] = int(fields[1])
    return found


def descendants_of(pid: int) -> list[int]:
    """Return the running processes that a process started, and that those started."""
    parents, found = _parents(), [pid]
    for each in found:
        found += sorted(child for child, parent in parents.items() if parent == each)
    return found[1:]


def children_of(pid: int, module: str = "") -> list[int]:
    """Return the running processes that a process started, all or those that run a module."""
    found = []
    for child in sorted(child for child, parent in _parents().items() if parent == pid):
        with contextlib.suppress(OSError):
            if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def pid_of_pipeline(server: Process) -> int:
    """Return the process that prepares prompts and runs the engine: the server or its child."""
    return next(iter(children_of(server.process.pid, RUNNER)), server.process.pid)
