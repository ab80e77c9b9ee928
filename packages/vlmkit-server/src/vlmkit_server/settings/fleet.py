"""Settings of a server with several models."""

import msgspec

from vlmkit.settings.bounds import Positive, Seconds
from vlmkit.settings.lifecycle import IdleSeconds, OnFailure, When


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When models are loaded and unloaded, and how much memory they take together.

    Attributes:
        load: when a model is loaded: ``start`` with the server, ``use`` at its first request,
            ``request`` when a client loads it, which ``manage`` allows. A table of ``[[models]]``
            may override this.
        idle_unload_s: time without a request after which a model is unloaded; never when None.
        memory_budget_bytes: memory of all loaded models. To load another one, the server unloads
            idle models, the least recently used first. Unlimited when None.
        load_wait_s: time that a request waits for its model.
        load_timeout_s: time that loading one model may take, downloads included, before the server
            exits; unlimited when None.
        on_engine_failure: what happens when a model's engine fails for good, or hangs. ``exit``
            lets other answers finish and ends the process with code 3. ``restart`` unloads the
            model and loads it again while others answer. A table of ``[[models]]`` may override
            this.
        max_restarts: consecutive restarts of a model; after that, the server exits.
        manage: allow clients to load and unload models by name.
    """

    load: When = "start"
    idle_unload_s: IdleSeconds | None = None
    memory_budget_bytes: Positive | None = None
    load_wait_s: Seconds = 300.0
    load_timeout_s: Seconds | None = None
    on_engine_failure: OnFailure = "exit"
    max_restarts: Positive = 5
    manage: bool = False
