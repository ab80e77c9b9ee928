"""Shortest prompt first: who asks little is answered soon, however much others ask.

A policy is mostly an order of the queue, so vlmkit's own scheduler does all the rest: rooms,
chunks, images, preemption. Requests of a higher priority still come first.
"""

from typing import Annotated

import msgspec

import vlmkit
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.settings.scheduler import SchedulerSettings

VLMKIT_API = (1, 0)
LEVEL = 2**32
"""How far two priorities lie apart: no prompt has as many tokens."""


class ShortestSettings(SchedulerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[scheduler]`` beside ``use = "yourname"``; has those of vlmkit's own, too.

    Attributes:
        long_tokens: prompts of so many tokens or more are equally long: they wait for those that
            came before them, and for shorter ones.
    """

    long_tokens: Annotated[int, msgspec.Meta(ge=1, lt=LEVEL)] = 32768


class ShortestFirst(vlmkit.ContinuousScheduler):
    """Queues by priority, then by the length of the prompt, then by arrival.

    Args:
        settings: how much runs together, and what is long.

    Attributes:
        ignores: of the usual order, that of equals the first to come is served first.
    """

    ignores = frozenset({"arrival"})

    def __init__(self, settings: ShortestSettings | None = None) -> None:
        self._own = settings or ShortestSettings()
        super().__init__(self._own)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        Raises:
            QueueFull: the queue is at its bound.
        """
        length = min(sequence.num_prompt_tokens, self._own.long_tokens)
        sequence.priority = sequence.priority * LEVEL + length
        super().add(sequence)


def _build(context: BuildContext) -> Scheduler:
    return ShortestFirst(context.settings)


@vlmkit.hookimpl
def vlmkit_register_schedulers(registry: Registry[Scheduler]) -> None:
    """Offer ``scheduler.use = "yourname"``."""
    registry.add("yourname", _build, settings=ShortestSettings, description="shortest prompt first")
