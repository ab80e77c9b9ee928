"""Loads folders, each in a process of its own with limits, and reports the results.

``python hostile_checkpoints.py SETTINGS`` reads paths of folders, one a line, and answers each with
a line of JSON. A crash in native code shows as a signal.
"""

import contextlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

MAX_CPU_S = 60
MAX_MORE_BYTES = 4 * 2**30  # of address space: threads reserve more than they use


def main() -> None:
    """Serve until standard input ends."""
    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import vlmkit
    from vlmkit.errors import VlmkitError

    warm_up(settings)
    for line in sys.stdin:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                found = tried(Path(line.rstrip("\n")), settings, vlmkit, VlmkitError)
                os.write(writing, json.dumps(found).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            content = pipe.read()
        _, status, used = os.wait4(pid, 0)
        found = json.loads(content) if content else {"kind": "", "message": ""}
        found["signal"] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        found["cpu_s"] = used.ru_utime + used.ru_stime
        found["peak_bytes"] = used.ru_maxrss * 1024
        answers.write(json.dumps(found) + "\n")


def warm_up(settings: dict[str, Any]) -> None:
    """Import the modules that a load needs, so that each process inherits them."""
    for module in settings["modules"]:
        __import__(module)


def tried(folder: Path, settings: dict[str, Any], vlmkit: Any, expected: type) -> dict[str, Any]:
    """Load a folder and have it say two tokens; return how that ended."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MAX_MORE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with vlmkit.load(folder, **settings["sections"]) as model:
            model.generate("Hello", max_tokens=2)
    except expected as error:
        return {"kind": type(error).__name__, "message": str(error), "is_expected": True}
    except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
        trace = traceback.format_exc()
        return {"kind": type(error).__name__, "message": trace, "is_expected": False}
    return {"kind": "", "message": "", "is_expected": True}


if __name__ == "__main__":
    main()
