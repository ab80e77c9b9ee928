"""How many cores there are to compute on."""

import os
import sys


def num_cores() -> int:
    """Return how many cores this process may use; all, where the system does not say."""
    found = os.cpu_count()
    if sys.platform == "linux":
        found = len(os.sched_getaffinity(0))
    return found or 1
