"""Gives freed memory back to the system, so that what was needed for a moment is not kept for good.

Only glibc's heap keeps it and can be asked; elsewhere nothing is done. Knows no caches: what is
still in use stays.
"""

import ctypes
import sys


def trim() -> None:
    """Give back what is freed; takes milliseconds, and what is used next is asked for anew."""
    if sys.platform != "linux":
        return
    if give_back := getattr(ctypes.CDLL(None), "malloc_trim", None):
        give_back(0)
