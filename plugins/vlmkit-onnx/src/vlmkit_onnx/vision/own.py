"""The ways in which our own exporter's graphs are fed; each graph says which is its own."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from vlmkit.errors import CheckpointError
from vlmkit_onnx.vision.anyres import AnyresFeeding
from vlmkit_onnx.vision.patches import CropFeeding, GridFeeding, PlaceFeeding
from vlmkit_onnx.vision.tiles import TileFeeding

KEY = "vlmkit_feeding"  # among the metadata of a graph

OwnFeeding: TypeAlias = TileFeeding | AnyresFeeding | GridFeeding | CropFeeding | PlaceFeeding


def written(feeding: OwnFeeding) -> dict[str, str]:
    """Return what is written into a graph about its feeding."""
    return {KEY: msgspec.json.encode(feeding).decode()}


def own_feeding(metadata: Mapping[str, str]) -> OwnFeeding:
    """Return how a graph is fed, by what is written in it.

    Raises:
        CheckpointError: it is not one of our exporter's, or of another version of it.
    """
    try:
        feeding: OwnFeeding = msgspec.json.decode(metadata.get(KEY, ""), type=OwnFeeding)
    except msgspec.DecodeError as error:
        raise CheckpointError(
            "the vision graph does not say how it is fed",
            hint="export the model again: vlmkit export MODEL DIR",
        ) from error
    return feeding
