"""What a server is given to serve: a runner that is there, or how and when to load one."""

from collections.abc import Callable
from dataclasses import dataclass

from vlmkit.interfaces.runner import Runner
from vlmkit.model import Model
from vlmkit.settings.lifecycle import OnFailure, When

Served = Runner | Model
"""Who answers; of a model, its runner does."""

Loader = Callable[[], Served]
"""Loads a model; is called in a thread of the server's, once for each time it is loaded."""


def runner_of(served: Served) -> Runner:
    """Return who answers the requests."""
    return served.runner if isinstance(served, Model) else served


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """How one model is served.

    Attributes:
        load: loads it; without one it is there from the start, or somebody else brings it.
        aliases: other names that clients may call it by.
        when: when it is loaded; as the server's settings say when None.
        idle_unload_s: time without a request after which it is unloaded; as the settings say when
            None.
        memory_bytes: what it counts for in the memory budget.
        on_engine_failure: what is done when its engine fails for good; as the settings say when
            None. What has no ``load`` cannot be loaded again.
        weigh: finds that out where it is not stated; called as ``load`` is, before the first time.
    """

    load: Loader | None = None
    aliases: tuple[str, ...] = ()
    when: When | None = None
    idle_unload_s: float | None = None
    memory_bytes: int | None = None
    on_engine_failure: OnFailure | None = None
    weigh: Callable[[], int] | None = None
