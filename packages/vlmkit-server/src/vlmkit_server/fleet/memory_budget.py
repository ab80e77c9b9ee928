"""Which models leave so that another one fits into the memory budget. Decides, and does nothing."""

from collections.abc import Iterable
from dataclasses import dataclass

from vlmkit_server.fleet.model_handle import ModelHandle


@dataclass(frozen=True)
class Room:
    """What must happen before a model can be loaded.

    Attributes:
        is_there: nothing must.
        is_coming: those who leave, or already do, make enough room.
        leavers: idle models that are to leave, the one that was asked least recently first.
    """

    is_there: bool = False
    is_coming: bool = False
    leavers: tuple[ModelHandle, ...] = ()


def room_for(model: ModelHandle, models: Iterable[ModelHandle], budget_bytes: int | None) -> Room:
    """Find room; nobody leaves in vain, and no model that has anything to do."""
    if budget_bytes is None:
        return Room(is_there=True)
    inside = [each for each in models if each.is_in_memory]
    lacking = _bytes(model, *inside) - budget_bytes
    if lacking <= 0:
        return Room(is_there=True)
    lacking -= _bytes(*(each for each in inside if each.state == "unloading"))
    leavers = []
    for each in sorted(inside, key=lambda each: each.last_used_s):
        if lacking > 0 and each.is_idle:
            leavers.append(each)
            lacking -= _bytes(each)
    return Room() if lacking > 0 else Room(is_coming=True, leavers=tuple(leavers))


def _bytes(*models: ModelHandle) -> int:
    return sum(each.memory_bytes or 0 for each in models)
