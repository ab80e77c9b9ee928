"""Times the calls of one method of an object that is running."""

import time
from collections.abc import Callable


def timed(subject: object, method: str) -> list[float]:
    """Return a list that every later call of a method appends its seconds to."""
    plain: Callable[..., object] = getattr(subject, method)
    seconds: list[float] = []

    def call(*args: object) -> object:
        started = time.perf_counter()
        result = plain(*args)
        seconds.append(time.perf_counter() - started)
        return result

    setattr(subject, method, call)
    return seconds
