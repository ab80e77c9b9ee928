"""The way in which each family's graph of our own exporter is fed."""

from collections.abc import Callable, Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit_onnx.vision.feeding import Feeding
from vlmkit_onnx.vision.tiles import TileFeeding

Config = Mapping[str, Any]


def feeding_of(config: Config) -> Feeding:
    """Return how the graph of a family is fed.

    Args:
        config: the content of the model's ``config.json``.

    Raises:
        CheckpointError: the family is not known.
    """
    name = str(config.get("model_type", ""))
    if name not in _FAMILIES:
        raise CheckpointError(f"model type {name!r} has no vision tower that vlmkit-onnx knows")
    return _FAMILIES[name](config)


def _tiles(_config: Config) -> Feeding:
    return TileFeeding()


_FAMILIES: Mapping[str, Callable[[Config], Feeding]] = {
    "llava": _tiles,
}
