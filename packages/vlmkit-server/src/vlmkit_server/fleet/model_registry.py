"""The models of a server by their names, and how far they are as a whole. Loads nothing."""

from collections.abc import Iterable, Mapping

from vlmkit.errors import ConfigError
from vlmkit_server.fleet.load_failure import too_large
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.http.errors import ModelNotFound
from vlmkit_server.settings.fleet import FleetSettings


class ModelRegistry:
    """Some models.

    Args:
        offers: how each is served, by its own name.
        settings: when they are loaded, and how much memory they may take.

    Attributes:
        models: each by its own name.

    Raises:
        ConfigError: two of them share a name, or they cannot be within the memory budget.
    """

    def __init__(self, offers: Mapping[str, ModelSpec], settings: FleetSettings) -> None:
        self.models = {
            name: ModelHandle(
                name,
                offer,
                is_expected=(offer.when or settings.load) == "start",
                is_restartable=(offer.on_engine_failure or settings.on_engine_failure) == "restart",
            )
            for name, offer in offers.items()
        }
        self._by_name = _by_name(self.models.values())
        if settings.memory_budget_bytes is not None:
            _check_sizes(self.models.values(), settings.memory_budget_bytes)

    def find(self, name: str) -> ModelHandle:
        """Return a model by one of its names, whether or not it is in memory.

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
        """Whether models that are to be there at the start are not, yet, or all have to return."""
        models = self.models.values()
        are_away = bool(models) and all(model.is_restarting for model in models)
        return are_away or any(model.is_expected for model in models)

    @property
    def ready_in_s(self) -> float | None:
        """In how many seconds all are there that are to be; None where nobody knows."""
        models = self.models.values()
        known = [model.ready_in_s for model in models if model.is_expected or model.is_restarting]
        return None if None in known else max(filter(None, known), default=None)

    @property
    def has_failed(self) -> bool:
        """Whether a model is dead, or all were to be there at the start and none could be."""
        models = self.models.values()
        is_lost = bool(models) and all(model.is_lost for model in models)
        return is_lost or any(model.is_doomed for model in models)


def _by_name(models: Iterable[ModelHandle]) -> dict[str, ModelHandle]:
    found: dict[str, ModelHandle] = {}
    for model in models:
        for name in model.names:
            if name in found:
                raise ConfigError(f"two models are called {name!r}", hint="give each its own names")
            found[name] = model
    return found


def _check_sizes(models: Iterable[ModelHandle], budget_bytes: int) -> None:
    """Refuse what could never be loaded, or would be counted as nothing."""
    loaded = [model for model in models if model.offer.load is not None]
    for model in loaded:
        if model.memory_bytes is None and model.offer.weigh is None:
            raise ConfigError(
                f"nobody says how much memory model {model.name!r} takes, and "
                "server.fleet.memory_budget_bytes is set",
                hint="state its memory_bytes",
            )
        if (model.memory_bytes or 0) > budget_bytes:
            raise too_large(model.name, model.memory_bytes or 0, budget_bytes)
    at_start = sum(model.memory_bytes or 0 for model in loaded if model.is_expected)
    if at_start > budget_bytes:
        raise ConfigError(
            f"the models that are loaded at the start take {at_start} bytes, more than "
            f"server.fleet.memory_budget_bytes = {budget_bytes}",
            hint='set load = "use" for some of them',
        )
