"""Waits for an idle machine, because figures beside other load are meaningless.

Busy cores are visible. On a rented machine, neighbours also use memory bandwidth invisibly, and a
single answer is bound by it, so the bandwidth is measured.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

LOOK_S = 1.0
READ_BYTES = 2**28  # of each thread; larger than any cache
PATIENCE_S = 900.0


def busy_cores() -> float:
    """Return the number of busy cores in the last second; 0 if the system does not report it."""
    before = _busy_ticks()
    time.sleep(LOOK_S)
    return (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / LOOK_S


def wait_until(idle_but: float) -> None:
    """Wait until fewer cores than ``idle_but`` are busy, at most a quarter of an hour."""
    deadline = time.monotonic() + PATIENCE_S
    while (busy := busy_cores()) > idle_but:
        if time.monotonic() > deadline:
            print(f"  {busy:.2f} cores are busy with other programs", flush=True)
            return
        time.sleep(2 * LOOK_S)


def memory_gb_per_s(threads: int) -> float:
    """Return the memory bandwidth of a number of threads, in 10^9 bytes/s; the best of five."""
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
