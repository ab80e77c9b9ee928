"""The models of a server by name, and their common state. It does not load models."""

from collections.abc import Iterable, Mapping

from vlmkit.errors import ConfigError
from vlmkit_server.fleet.load_failure import too_large
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.http.errors import ModelNotFound
from vlmkit_server.settings.fleet import FleetSettings


class ModelRegistry:
    """The models of a server.

    Args:
        specs: how each is served, by its own name.
        settings: when they are loaded, and the memory budget.

    Attributes:
        models: each by its own name.

    Raises:
        ConfigError: two models share a name, or they exceed the memory budget.
    """

    def __init__(self, specs: Mapping[str, ModelSpec], settings: FleetSettings) -> None:
        self.models = {
            name: ModelHandle(
                name,
                spec,
                is_expected=(spec.when or settings.load) == "start",
                is_restartable=(spec.on_engine_failure or settings.on_engine_failure) == "restart",
            )
            for name, spec in specs.items()
        }
        self._by_name = _by_name(self.models.values())
        if settings.memory_budget_bytes is not None:
            _check_sizes(self.models.values(), settings.memory_budget_bytes)

    def find(self, name: str) -> ModelHandle:
        """Return a model by one of its names, whether or not it is loaded.

        Raises:
            ModelNotFound: there is no such model.
        """
        if (model := self._by_name.get(name)) is None:
            raise ModelNotFound(
                "the model is not served here", param="model", hint="GET /v1/models lists them"
            )
        return model

    @property
    def is_starting(self) -> bool:
        """Whether models are still loading at startup, or all are restarting."""
        models = self.models.values()
        are_restarting = bool(models) and all(
            model.is_restarting or model.is_recovering for model in models
        )
        return are_restarting or any(model.is_expected for model in models)

    @property
    def ready_in_s(self) -> float | None:
        """In how many seconds all expected models are ready; None if unknown."""
        models = self.models.values()
        known = [model.ready_in_s for model in models if model.is_expected or model.is_restarting]
        return None if None in known else max(filter(None, known), default=None)

    @property
    def has_failed(self) -> bool:
        """Whether a model needs a new process, or no model could be loaded at startup."""
        models = self.models.values()
        none_loaded = bool(models) and all(model.failed_at_start for model in models)
        return none_loaded or any(model.needs_new_process for model in models)


def _by_name(models: Iterable[ModelHandle]) -> dict[str, ModelHandle]:
    found: dict[str, ModelHandle] = {}
    for model in models:
        for name in model.names:
            if name in found:
                raise ConfigError(f"two models are called {name!r}", hint="give each its own names")
            found[name] = model
    return found


def _check_sizes(models: Iterable[ModelHandle], budget_bytes: int) -> None:
    """Refuse models that could never be loaded, or whose size is unknown."""
    loaded = [model for model in models if model.spec.load is not None]
    for model in loaded:
        if model.memory_bytes is None and model.spec.weigh is None:
            raise ConfigError(
                f"the memory size of model {model.name!r} is unknown, and "
                "server.fleet.memory_budget_bytes is set",
                hint="state its memory_bytes",
            )
        if (model.memory_bytes or 0) > budget_bytes:
            raise too_large(model.name, model.memory_bytes or 0, budget_bytes)
    startup_bytes = sum(model.memory_bytes or 0 for model in loaded if model.is_expected)
    if startup_bytes > budget_bytes:
        raise ConfigError(
            f"the models that are loaded at the start take {startup_bytes} bytes, more than "
            f"server.fleet.memory_budget_bytes = {budget_bytes}",
            hint='set load = "use" for some of them',
        )
