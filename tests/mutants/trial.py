"""Runs tests on a mutant, in a process of its own.

    python -m mutants.trial PATH SOURCE SECONDS TEST ...

The module at ``PATH`` is executed from the file ``SOURCE``; no file of the project changes. The
process is killed after so many seconds of CPU time. With ``--reached FILE`` in place of ``SOURCE``
and ``SECONDS``, no module changes, and ``FILE`` receives the lines that the tests reach. Processes
that the tests start see no mutant.
"""

import contextlib
import importlib.machinery
import json
import resource
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

MEMORY_BYTES = 16 * 2**30  # of addresses; a mutant may ask for any amount


def replace(path: str, source: str) -> None:
    """Execute a module from another source in this process."""
    own = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if self.path != path:
            return own(self, fullname)
        return compile(source, path, "exec", dont_inherit=True)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def record(paths: set[str], reached: dict[str, set[int]]) -> None:
    """Record the lines of files that are executed from now on, in all threads."""

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in paths:
            return None
        reached.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)


def main() -> int:
    """Run the tests, and return pytest's exit status."""
    path, source, target, *tests = sys.argv[1:]
    reached: dict[str, set[int]] = {}
    if source == "--reached":
        record(set(path.split(":")), reached)
    else:
        with contextlib.suppress(ValueError):  # more than the system's own limit
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (int(target), int(target)))
        replace(path, Path(source).read_text())

    import pytest

    quiet = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "-m"]
    status = pytest.main([*quiet, "not gpu", *tests])
    if source == "--reached":
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        lines = {name: sorted(numbers) for name, numbers in reached.items()}
        Path(target).write_text(json.dumps(lines))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
