"""Whether anybody else computes on this machine: figures beside a busy neighbour say nothing."""

import os
import time
from pathlib import Path

LOOK_S = 1.0
PATIENCE_S = 900.0


def busy_cores() -> float:
    """Return how many cores were busy in the last second; 0 where the system does not say."""
    before = _busy_ticks()
    time.sleep(LOOK_S)
    return (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / LOOK_S


def wait_until(idle_but: float) -> None:
    """Wait until fewer cores are busy than ``idle_but``; after a quarter of an hour, go on."""
    deadline = time.monotonic() + PATIENCE_S
    while (busy := busy_cores()) > idle_but:
        if time.monotonic() > deadline:
            print(f"  {busy:.2f} cores are busy with something else", flush=True)
            return
        time.sleep(2 * LOOK_S)


def _busy_ticks() -> int:
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0
    user, nice, system = map(int, stat.read_text().split()[1:4])
    return user + nice + system
