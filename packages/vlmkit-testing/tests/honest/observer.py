"""A correct observer that hears of failures alone, and forgets all but the newest."""

from collections import deque
from collections.abc import Mapping

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.observer import Observer, RequestFacts


class NewestFailures(Observer):
    """Keeps the times of the newest failures, and reports how close they are."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=3)

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        """Keep the time."""
        self._times.append(at_s)

    def stats(self) -> Mapping[str, float]:
        """Return the seconds between the newest failures."""
        times = tuple(self._times)
        return {"failures_within_s": times[-1] - times[0]} if times else {}
