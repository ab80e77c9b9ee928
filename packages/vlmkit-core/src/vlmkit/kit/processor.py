"""The instruction sets of this machine's processor, on Linux; knows no library's kernels."""

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def features() -> frozenset[str]:
    """Return the names of instruction sets, such as ``avx512_bf16``; empty if unknown."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    return frozenset(next(lines, "").partition(":")[2].split())
