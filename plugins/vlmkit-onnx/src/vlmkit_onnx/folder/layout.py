"""The parts of an ONNX model, independent of its exporter.

Three readers create a :class:`Layout`: for vlmkit's own exports, for onnx-community's folders and
for onnxruntime-genai's. Everything that runs the parts depends on this class alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder import manifest
from vlmkit_onnx.folder.graph_header import read_header
from vlmkit_onnx.folder.manifest import TowerPrecision

DecoderKind = Literal["slots", "masked", "concat"]
"""How a decoder gets the length of its cache.

slots: from the length of each row (vlmkit's exports); masked: from an attention mask over a shared
buffer; concat: from the cache's shape, and it returns an extended copy.
"""


@dataclass(frozen=True, slots=True)
class DecoderGraph:
    """The language model.

    Attributes:
        file: its graph.
        kind: how its cache works.
        past_key: name pattern of the cache inputs for keys, with ``%d`` for the layer.
        past_value: the same for values.
        present_key: name pattern of the cache outputs for keys.
        present_value: the same for values.
        names: the graph's names of inputs and outputs that differ from vlmkit's.
        head_dim: width of a key, for graphs that do not state it.
    """

    file: Path
    kind: DecoderKind
    past_key: str = "past_key_values.%d.key"
    past_value: str = "past_key_values.%d.value"
    present_key: str = "present.%d.key"
    present_value: str = "present.%d.value"
    names: Mapping[str, str] = field(default_factory=dict)
    head_dim: int | None = None


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Embeddings as a table on disk, read row by row."""

    file: Path
    tensor: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class TokenGraph:
    """Embeddings as a graph from token ids to rows; ``names`` as for :class:`DecoderGraph`.

    ``image_token`` is the placeholder of an image, for graphs that also take image rows.
    """

    file: Path
    names: Mapping[str, str] = field(default_factory=dict)
    image_token: int | None = None


@dataclass(frozen=True, slots=True)
class VisionGraph:
    """The vision tower with its projector; ``names`` as for :class:`DecoderGraph`.

    ``is_own`` marks graphs of vlmkit's exporter, whose helper inputs the host computes. The
    ``precision`` of other graphs is unknown.
    """

    file: Path
    is_own: bool
    precision: TowerPrecision | None = None
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One model's parts.

    Attributes:
        kind: its exporter, in a word.
        precision: of the decoder's weights, in a word.
        decoder: the language model.
        embeddings: from token ids to rows; None if the decoder takes token ids.
        vision: the vision tower; None for a text model.
        max_sequence_tokens: longest sequence of the model.
        is_batch_invariant: whether a row of logits never depends on the rest of its batch.
        sliding_window: tokens that layers with a window see, if the host builds the masks.
    """

    kind: str
    precision: str
    decoder: DecoderGraph
    embeddings: TokenTable | TokenGraph | None
    vision: VisionGraph | None
    max_sequence_tokens: int
    is_batch_invariant: bool
    sliding_window: int | None = None


def own_tower(file: Path) -> VisionGraph:
    """Return a separately exported tower of vlmkit's; its graph shows its precision.

    Raises:
        CheckpointError: the file is absent, or not a graph.
    """
    if not file.is_file():
        raise CheckpointError(f"{file.name!r} is missing", hint="fetch or export the model again")
    is_rounded = "MatMulIntegerToFloat" in read_header(file).op_types
    return VisionGraph(file, is_own=True, precision="w8a8" if is_rounded else "fp32")


def _stated_tower(folder: Path, stated: manifest.Manifest) -> VisionGraph | None:
    if stated.vision is None:
        return None
    return VisionGraph(folder / stated.vision, is_own=True, precision=stated.vision_precision)


def own_layout(checkpoint: Checkpoint, folder: Path) -> Layout:
    """Read a folder of vlmkit's exporter, for a checkpoint's family.

    Raises:
        CheckpointError: the manifest is broken, or belongs to another family.
    """
    stated = manifest.read(folder)
    if checkpoint.model_type not in ("", stated.model_type):
        raise CheckpointError(
            f"{manifest.FILE!r} of model {checkpoint.name!r} is of type {stated.model_type!r}, and "
            f"config.json of type {checkpoint.model_type!r}"
        )
    table = stated.embeddings
    return Layout(
        kind="vlmkit",
        precision=stated.precision,
        decoder=DecoderGraph(folder / stated.decoder, "slots"),
        embeddings=TokenTable(folder / table.file, table.tensor, table.scale),
        vision=_stated_tower(folder, stated),
        max_sequence_tokens=stated.max_sequence_tokens,
        is_batch_invariant=stated.is_batch_invariant,
        sliding_window=stated.sliding_window,
    )
