"""Reserves addresses whose pages take memory only when written, and returns pages to the system.

Windows commits memory for every address at once, and takes none back before the end. Does not read
or write the pages.
"""

import contextlib
import ctypes
import mmap
import os
import sys

MAP_FIXED = 0x10  # on Linux, macOS and the BSDs alike; the mmap module does not name it


def commits_at_once() -> bool:
    """Return whether reserved addresses count as used memory before they are written."""
    return sys.platform == "win32"


def reserve(num_bytes: int) -> mmap.mmap:
    """Reserve addresses that read as zero, in pages of the smallest size.

    Raises:
        OSError: the system cannot reserve so many.
    """
    if sys.platform == "win32":
        pages = mmap.mmap(-1, num_bytes)
    else:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages


def free(pages: mmap.mmap, start: int, num_bytes: int) -> None:
    """Return whole pages to the system, so that they read as zero; do nothing on Windows."""
    if sys.platform == "linux":
        pages.madvise(mmap.MADV_DONTNEED, start, num_bytes)
    elif sys.platform != "win32":
        _map_again(ctypes.addressof(ctypes.c_char.from_buffer(pages, start)), num_bytes)


def _map_again(address: int, num_bytes: int) -> None:
    """Map new pages at an address: outside Linux, no advice frees memory at once."""
    if sys.platform != "win32":
        system_mmap = ctypes.CDLL(None, use_errno=True).mmap
        system_mmap.restype = ctypes.c_void_p
        system_mmap.argtypes = (
            *(ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t),
        )
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        if system_mmap(address, num_bytes, access, flags, -1, 0) != address:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
