"""``vlmkit_onnx.json``: facts about the graphs of vlmkit's exporter that the graphs do not show.

``layout`` describes the files and their inputs.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from vlmkit.errors import CheckpointError

FILE = "vlmkit_onnx.json"
FORMAT = 1
MAX_BYTES = 2**20

Precision = Literal["w8a8", "int4", "int8", "fp16", "fp32"]
Stored = Literal["stored"]
"""In place of a precision: the integers of a quantized checkpoint."""
PlainPrecision = Literal["fp32", "w8a8", "int8", "int4"]
"""The precision of layers that a quantized checkpoint has plain, beside its integers."""
StoredPrecision = Annotated[
    str,
    Meta(
        pattern=r"^(w8a8|int4|int8|fp16|fp32"
        r"|(awq|gptq|compressed-tensors|gguf)(-int[2-8])+(\+(w8a8|int8|int4))?)\Z"
    ),
]
"""A precision; of stored integers, the method and the bits, such as ``gptq-int4``.

``gptq-int4+w8a8`` has rounded layers beside them.
"""
TowerPrecision = Literal["w8a8", "fp32"]
TOWER_BESIDE: Mapping[str, TowerPrecision] = MappingProxyType({"fp16": "fp32", "fp32": "fp32"})
"""The precision of a tower beside a decoder of this precision: for GPUs, and for comparisons."""
Name = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")]
Positive = Annotated[int, Meta(ge=1)]


class Embeddings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The token table.

    Attributes:
        file: a safetensors file of the same folder.
        tensor: the table's name in it, ``[vocab, hidden]``.
        scale: factor of its rows.
    """

    file: Name = "embeddings.safetensors"
    tensor: str = "weight"
    scale: float = 1.0


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exported model.

    Attributes:
        format: version of this layout.
        model_type: the family, as in the checkpoint's ``config.json``.
        precision: how the linear layers of the decoder are stored and computed. With the method
            of a quantized checkpoint, they are its integers. Layers that it has plain are float32,
            or of the precision after ``+``.
        max_sequence_tokens: longest sequence of the model.
        is_batch_invariant: whether a row of logits never depends on the rest of its batch.
        decoder: the language model's graph, a file of the same folder.
        embeddings: the token table.
        vision: the vision tower's graph; None for a text model.
        vision_precision: how the linear layers of the vision tower are stored and computed.
        sliding_window: tokens that layers with a window see, if the host builds the masks; else
            None.
        made_with: versions of the packages that took part in the export, by name.
    """

    format: Literal[1] = 1
    model_type: str
    precision: StoredPrecision
    max_sequence_tokens: Positive
    is_batch_invariant: bool
    decoder: Name = "decoder.onnx"
    embeddings: Embeddings = Embeddings()
    vision: Name | None = None
    vision_precision: TowerPrecision = "fp32"
    sliding_window: Positive | None = None
    made_with: dict[str, str] = {}


def read(folder: Path) -> Manifest:
    """Return a folder's manifest.

    Raises:
        CheckpointError: it is too large, or not of this format.
    """
    path = folder / FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{FILE!r} is over {MAX_BYTES} bytes")
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(
            f"{FILE!r} is not a manifest of format {FORMAT}",
            hint="export the model again: vlmkit export MODEL DIR",
        ) from error


def write(folder: Path, manifest: Manifest) -> None:
    """Write a folder's manifest."""
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
