"""How a model is served: a loaded runner, or how and when to load one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmkit.interfaces.runner import Runner
from vlmkit.model import Model
from vlmkit.settings.lifecycle import OnFailure, When

Servable = Runner | Model
"""An object that answers requests; a model does so by its runner."""

Loader = Callable[[], Servable]
"""Loads a model; called in a thread of the server, once for each load."""


def runner_of(servable: Servable) -> Runner:
    """Return the runner that answers the requests."""
    return servable.runner if isinstance(servable, Model) else servable


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """How one model is served.

    Attributes:
        load: loads it; without a loader, it is loaded already, or other code adds it later.
        aliases: other names that clients may use.
        alias_fields: request fields of plugins that some of these names set, by name.
        when: when it is loaded; as the server's settings say when None.
        idle_unload_s: time without a request after which it is unloaded; as the settings say when
            None.
        memory_bytes: its size in the memory budget.
        on_engine_failure: what is done when its engine fails for good; as the settings say when
            None. A model without ``load`` cannot be loaded again.
        weigh: returns its size if none is stated; called as ``load`` is, before the first load.
    """

    load: Loader | None = None
    aliases: tuple[str, ...] = ()
    alias_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    when: When | None = None
    idle_unload_s: float | None = None
    memory_bytes: int | None = None
    on_engine_failure: OnFailure | None = None
    weigh: Callable[[], int] | None = None
