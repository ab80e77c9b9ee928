"""Runs work in a short-lived thread, so that torch's CPU threads keep spinning while they wait.

OpenMP gives every thread that computes its own thread pool, which lasts as long as that thread. If
all pools of GNU's OpenMP together have more threads than there are processors, waiting threads
sleep instead of spinning. A token has hundreds of such waits. Model loading, and any other
computation beside the engine loop, therefore runs in a thread that ends.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a new thread; return its result or raise its error.

    An interrupt does not wait for the work, and neither does the end of the process.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="vlmkit-torch-load", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()
    return results.pop()
