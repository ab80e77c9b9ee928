"""A local plugin: an observer that reports the longest step since its last report."""

from collections.abc import Mapping
from typing import Any

from vlmkit import hookimpl
from vlmkit.interfaces.observer import Observer, StepFacts
from vlmkit.plugins.registry import Registry

VLMKIT_API = (1, 0)


class LongestStep(Observer):
    """Records the longest step."""

    def __init__(self) -> None:
        self._longest_s = 0.0

    def step(self, step: StepFacts, at_s: float) -> None:  # noqa: ARG002
        """Record the time of a step."""
        self._longest_s = max(self._longest_s, step.step_s)

    def stats(self) -> Mapping[str, float]:
        """Return the longest time, and reset it."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return {"longest_s": longest_s}


@hookimpl
def vlmkit_register_observers(registry: Registry[Any]) -> None:
    """Register the provider ``longest_step``."""
    registry.add("longest_step", lambda context: LongestStep())  # noqa: ARG005
