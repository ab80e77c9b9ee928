"""What an operator can set about several models in one server."""

import msgspec

from vlmkit.settings.bounds import Positive, Seconds
from vlmkit.settings.lifecycle import IdleSeconds, OnFailure, When


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When models are loaded and unloaded, and how much memory they take together.

    Attributes:
        load: when a model is loaded: ``start`` with the server, ``use`` when it is first asked,
            ``request`` when ``manage`` lets somebody ask for it. A table of ``[[models]]`` can say
            otherwise.
        idle_unload_s: time without a request after which a model is unloaded; never when None.
        memory_budget_bytes: memory of all models that are loaded; who was asked least recently and
            is idle makes room. Unbounded when None.
        load_wait_s: time that a request waits for its model.
        load_timeout_s: time that loading one model may take, downloads included, before the server
            ends; for ever when None.
        on_engine_failure: what is done when a model's engine fails for good, or hangs: ``exit``
            lets other answers finish and ends the process with code 3, ``restart`` unloads the
            model and loads it again while others answer. A table of ``[[models]]`` can say
            otherwise.
        max_restarts: times in a row that a model is loaded again; the server then ends.
        manage: let clients load and unload the models by their names.
    """

    load: When = "start"
    idle_unload_s: IdleSeconds | None = None
    memory_budget_bytes: Positive | None = None
    load_wait_s: Seconds = 300.0
    load_timeout_s: Seconds | None = None
    on_engine_failure: OnFailure = "exit"
    max_restarts: Positive = 5
    manage: bool = False
