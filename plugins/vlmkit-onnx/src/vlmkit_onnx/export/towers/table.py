"""Which tower belongs to which family."""

from collections.abc import Callable, Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit_onnx.export.towers import layers
from vlmkit_onnx.export.towers.tower import Tower

TOWERS: Mapping[str, Callable[[Any], Tower]] = {
    "llava": layers.llava,
}


def tower_of(model_type: str, base: Any) -> Tower:
    """Return the tower of a model.

    Args:
        model_type: the family.
        base: the model without its head.

    Raises:
        CheckpointError: the family is not known.
    """
    if model_type not in TOWERS:
        raise CheckpointError(f"vlmkit-onnx cannot export the vision tower of {model_type!r}")
    return TOWERS[model_type](base)
