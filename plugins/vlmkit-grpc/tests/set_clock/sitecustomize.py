"""Sets the clock of a Python process and of its children to the seconds that a file states.

Python imports it at its start if its folder is in PYTHONPATH. The file may change at any time.
"""

import os
import sys
import time
from pathlib import Path

_file = Path(os.environ["CLOCK_OF_TEST"])
_time, _time_ns = time.time, time.time_ns


def _ahead_s() -> int:
    """Return the difference; none for gRPC, whose library compares with a clock that is not set."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    return 0 if caller.partition(".")[0] == "grpc" else int(_file.read_text() or 0)


time.time = lambda: _time() + _ahead_s()
time.time_ns = lambda: _time_ns() + _ahead_s() * 10**9
