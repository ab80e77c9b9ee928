"""Keeps the threads that torch computes with on a CPU from sleeping at each of their meetings.

OpenMP gives every thread that computes a team of its own, which lasts as long as that thread. GNU's
counts all of them, and where they are more than the processors, the threads of every team sleep
when they wait for each other, and no longer spin. A token has hundreds of such waits. So what loads
a model, and whatever else computes beside the engine loop, does so in a thread that ends.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(work: Callable[[], T]) -> T:
    """Return or raise what some work does, in a thread that ends with it.

    An interrupt does not wait for the work; a process that ends leaves it behind.
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
