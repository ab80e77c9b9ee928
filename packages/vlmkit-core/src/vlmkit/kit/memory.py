"""The memory of this machine, and the part that this process may still use.

Considers limits of control groups (version 2), which containers have. Reserves nothing, and does
not report memory of GPUs.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")  # of memory.stat


def total_bytes() -> int | None:
    """Return the machine's memory in bytes; None if unknown."""
    if sys.platform != "win32":
        with contextlib.suppress(ValueError, OSError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def resident_bytes(pid: int | None = None) -> int | None:
    """Return the memory of a process in bytes, mapped files included; None if unknown.

    Args:
        pid: the process; None is this one.
    """
    status = _read(PROC / ("self" if pid is None else str(pid)) / "status")
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def limit_bytes() -> int | None:
    """Return the smallest limit of this process's control groups in bytes; None if unlimited."""
    return min((limit for limit, _ in _limits()), default=None)


def available_bytes() -> int | None:
    """Return the bytes that can be allocated without swapping; None if unknown.

    File caches count as available: the system drops them when memory is needed.
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(PROC / "meminfo"), re.MULTILINE)
    if found is None:
        return None
    of_groups = (max(0, limit - used) for limit, used in _limits())
    return min([int(found[1]) * 1024, *of_groups])


def _limits() -> Iterator[tuple[int, int]]:
    """Yield limit and usage in bytes of each control group of this process with a limit."""
    group_path = next(
        (line[3:] for line in _read(PROC / "self/cgroup").splitlines() if line[:3] == "0::"), "/"
    )
    folder = GROUPS / group_path.lstrip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(GROUPS):
            return
        limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
        if limit.isdigit() and used.isdigit():
            stat = dict(line.split() for line in _read(group / "memory.stat").splitlines())
            yield int(limit), int(used) - sum(int(stat.get(name, 0)) for name in RECLAIMABLE)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
