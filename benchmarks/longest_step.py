"""A local plugin: an observer that tells the longest step since it was last asked."""

from collections.abc import Mapping
from typing import Any

from vlmkit import hookimpl
from vlmkit.interfaces.observer import Observer, StepFacts
from vlmkit.plugins.registry import Registry

VLMKIT_API = (1, 0)


class LongestStep(Observer):
    """Keeps one number."""

    def __init__(self) -> None:
        self._longest_s = 0.0

    def step(self, step: StepFacts, at_s: float) -> None:  # noqa: ARG002
        """Note how long it took."""
        self._longest_s = max(self._longest_s, step.step_s)

    def stats(self) -> Mapping[str, float]:
        """Return the number, and begin anew."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return {"longest_s": longest_s}


@hookimpl
def vlmkit_register_observers(registry: Registry[Any]) -> None:
    """Offer ``observers.use = ["longest_step"]``."""
    registry.add("longest_step", lambda context: LongestStep())  # noqa: ARG005
