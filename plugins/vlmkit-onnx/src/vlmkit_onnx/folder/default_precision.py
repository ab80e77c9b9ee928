"""Decides how a checkpoint is exported if settings state no precision; imports nothing heavy.

A quantized checkpoint keeps its own integers. Whether they can be used shows later: see
``export.stored_form``.
"""

from collections.abc import Mapping

from vlmkit.kit import weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder.manifest import Precision, Stored

CONFIG_KEYS = ("quantization_config", "compression_config")
FILES = ("quantize_config.json", "hf_quant_config.json")


def is_quantized(checkpoint: Checkpoint) -> bool:
    """Return whether the weights of a checkpoint are stored in few bits, by any method."""
    config = checkpoint.config
    return (
        any(config.get(key) is not None for key in CONFIG_KEYS)
        or isinstance(config.get("quantization"), Mapping)
        or any(map(checkpoint.has, FILES))
        or weight_files.gguf_file(checkpoint) is not None
    )


def default_precision(checkpoint: Checkpoint) -> Precision | Stored:
    """Return the precision of an export without a stated one."""
    return "stored" if is_quantized(checkpoint) else "w8a8"


def described(precision: Precision | Stored) -> str:
    """Return a precision in words, for what is still to be exported."""
    return "stored integers" if precision == "stored" else precision
