"""The types of fields and tensors of a vision tower that the library reads.

Source: ``clip-impl.h`` and ``clip.cpp`` of llama.cpp. For another type of a field, the library ends
the process. It does not look at the types of numbers in arrays, and would read beyond their end.
Tensors that it adds to others, or multiplies by their numbers, must be in 32 bits: otherwise the
first image ends the process.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_file import GgufFile

TYPES = {
    "UINT32": (
        "general.file_type",
        "clip.vision.attention.head_count",
        "clip.vision.block_count",
        "clip.vision.embedding_length",
        "clip.vision.feed_forward_length",
        "clip.vision.image_crop_resolution",
        "clip.vision.image_max_pixels",
        "clip.vision.image_min_pixels",
        "clip.vision.image_size",
        "clip.vision.n_wa_pattern",
        "clip.vision.patch_size",
        "clip.vision.preproc_image_size",
        "clip.vision.preproc_max_tiles",
        "clip.vision.preproc_min_tiles",
        "clip.vision.projection_dim",
        "clip.vision.projector.scale_factor",
        "clip.vision.spatial_merge_size",
        "clip.vision.window_size",
    ),
    "FLOAT32": ("clip.vision.attention.layer_norm_epsilon",),
    "BOOL": (
        "clip.has_audio_encoder",
        "clip.has_vision_encoder",
        "clip.use_gelu",
        "clip.use_silu",
    ),
    "STRING": (
        "clip.projector_type",
        "clip.vision.mm_patch_merge_type",
        "clip.vision.projector_type",
        "general.architecture",
        "general.description",
        "general.name",
    ),
    "ARRAY": (
        "clip.vision.feature_layer",
        "clip.vision.image_grid_pinpoints",
        "clip.vision.image_mean",
        "clip.vision.image_std",
        "clip.vision.wa_layer_indexes",
    ),
}
FLOATS = ("clip.vision.image_mean", "clip.vision.image_std")
"""Arrays of FLOAT32; others have whole numbers of 4 bytes."""

PLACES = "v.position_embd.weight"
LOOKED_UP = "mlp"
"""The projector of LLaVA, with which rows of ``PLACES`` are looked up, in any type."""


def check_types(file: GgufFile, name: str) -> None:
    """Require the types that the library reads.

    Raises:
        FormatError: a field or a tensor has another type.
    """
    for field, found, wanted in _differences(file):
        raise FormatError(
            f"its file {name!r} has {field!r} in the type {found}, and llama.cpp reads {wanted}"
        )
    for tensor in _added(file):
        if (type_ := file.tensors[tensor].type) != "F32":
            raise FormatError(
                f"its file {name!r} has the tensor {tensor!r} in {type_}, and llama.cpp computes "
                "with it in F32",
                hint="take a file that a current converter wrote",
            )


def _added(file: GgufFile) -> list[str]:
    """Return the names of tensors that are added to others, or multiplied by their numbers."""
    is_looked_up = file.text("clip.projector_type") == LOOKED_UP
    return [
        name
        for name, tensor in file.tensors.items()
        if len(tensor.shape) == 1 or (name == PLACES and not is_looked_up)
    ]


def _differences(file: GgufFile) -> Iterator[tuple[str, str, str]]:
    for type_, fields in TYPES.items():
        for field in fields:
            if (found := file.types.get(field, type_)) != type_:
                yield field, found, type_
    for field in TYPES["ARRAY"]:
        wanted = "FLOAT32" if field in FLOATS else "INT32"
        value = file.fields.get(field, ())
        if isinstance(value, np.ndarray) and _type_of(value) != wanted:
            yield field, f"ARRAY of {value.dtype.name.upper()}", f"ARRAY of {wanted}"


def _type_of(array: "np.ndarray[Any, Any]") -> str:
    """Return the type of numbers; the library takes those without a sign as those with one."""
    name: str = array.dtype.name
    return name.upper().replace("UINT32", "INT32")
