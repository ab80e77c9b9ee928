"""The feedings of vlmkit's own vision graphs. The metadata of each graph states its feeding."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from vlmkit.errors import CheckpointError
from vlmkit_onnx.vision.anyres import AnyresFeeding
from vlmkit_onnx.vision.patches import CropFeeding, GridFeeding, PositionFeeding
from vlmkit_onnx.vision.tiles import TileFeeding

KEY = "vlmkit_feeding"  # among the metadata of a graph

OwnFeeding: TypeAlias = TileFeeding | AnyresFeeding | GridFeeding | CropFeeding | PositionFeeding


def written(feeding: OwnFeeding) -> dict[str, str]:
    """Return the metadata that states a graph's feeding."""
    return {KEY: msgspec.json.encode(feeding).decode()}


def own_feeding(metadata: Mapping[str, str]) -> OwnFeeding:
    """Return a graph's feeding from its metadata.

    Raises:
        CheckpointError: the graph is of another exporter, or of another version of vlmkit's.
    """
    try:
        feeding: OwnFeeding = msgspec.json.decode(metadata.get(KEY, ""), type=OwnFeeding)
    except msgspec.DecodeError as error:
        raise CheckpointError(
            "the vision graph does not say how it is fed",
            hint="export the model again: vlmkit export MODEL DIR",
        ) from error
    return feeding
