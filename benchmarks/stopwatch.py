"""Times the calls of one method of an object."""

import time
from collections.abc import Callable


def timed(subject: object, method: str) -> list[float]:
    """Return a list to which every later call of the method appends its seconds."""
    plain: Callable[..., object] = getattr(subject, method)
    seconds: list[float] = []

    def call(*args: object) -> object:
        started = time.perf_counter()
        result = plain(*args)
        seconds.append(time.perf_counter() - started)
        return result

    setattr(subject, method, call)
    return seconds
