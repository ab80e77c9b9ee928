"""How often, and how soon, a model that failed is loaded again. Decides, and loads nothing."""

from collections import Counter

FIRST_WAIT_S = 1.0
MAX_WAIT_S = 60.0
STEADY_S = 600.0  # who served for so long starts anew


class Restarts:
    """Counts failures in a row, of each model by its name.

    Args:
        most: how often in a row one is loaded again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tries: Counter[str] = Counter()
        self._last_s: dict[str, float] = {}

    def next_wait_s(self, name: str, now_s: float) -> float | None:
        """Note a failure; return when to load the model again, or None if that was often enough.

        Each wait is twice as long as the one before.
        """
        if now_s - self._last_s.get(name, now_s) > STEADY_S:
            self._tries[name] = 0
        self._last_s[name] = now_s
        if self._tries[name] >= self._most:
            return None
        self._tries[name] += 1
        return min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._tries[name] - 1, 16))
