"""The number of CPU cores that this process may use."""

import os
import sys


def num_cores() -> int:
    """Return the number of cores that this process may use; all cores if unknown."""
    found = os.cpu_count()
    if sys.platform == "linux":
        found = len(os.sched_getaffinity(0))
    return found or 1
