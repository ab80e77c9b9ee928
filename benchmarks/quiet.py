"""Whether anybody else uses this machine: figures beside a busy neighbour say nothing.

Cores that are busy can be waited for. On a rented machine neighbours also take of the memory's
speed, unseen, and a lone answer is as fast as its weights are read: so that is measured.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

LOOK_S = 1.0
READ_BYTES = 2**28  # of each thread; no cache holds it
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


def memory_gb_per_s(threads: int) -> float:
    """Return how fast so many threads read memory, in 10^9 bytes; the best of five."""
    arrays = [np.ones(READ_BYTES // 4, np.float32) for _ in range(threads)]
    best_s = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            started = time.perf_counter()
            list(pool.map(np.max, arrays))
            best_s = min(best_s, time.perf_counter() - started)
    return threads * READ_BYTES / best_s / 1e9


def _busy_ticks() -> int:
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0
    user, nice, system = map(int, stat.read_text().split()[1:4])
    return user + nice + system
