"""Finds out how a checkpoint is quantized and whether it can be read; imports nothing heavy.

Weights of the formats of vlmkit-quantized, and of 8-bit and 4-bit floats, are converted to the
precision of the model when they are read, exactly. For other methods, transformers runs the layers
with their own packages.
"""

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlmkit.kit import weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import Objection
from vlmkit_torch.support import compressed_tensors
from vlmkit_torch.support.compressed_tensors import UNQUANTIZED

if TYPE_CHECKING:
    from vlmkit_quantized.summary import Summary

EXPANDED = frozenset({"fp8", "mxfp8", "mxfp4"})
"""Methods whose weights are converted to plain ones when they are read."""

# Modules that reading needs, by method, each with the distribution that provides it.
_ACCELERATE = ("accelerate", "accelerate")
_NEEDED: Mapping[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(EXPANDED, (("accelerate", "vlmkit-torch[quantized]"),)),
    compressed_tensors.PACKAGE: (("compressed_tensors", "vlmkit-torch[quantized]"),),
    "hqq": (("hqq", "hqq"), _ACCELERATE),
    "quanto": (("optimum.quanto", "optimum-quanto"), _ACCELERATE),
    "torchao": (("torchao", "torchao"), _ACCELERATE),
    "auto-round": (("auto_round", "auto-round"),),
}

GGUF = "gguf"
"""The method of weights in a GGUF file, which may also be plain."""

NOT_QUANTIZED = "its weights are not quantized"
READERS = frozenset({"quantized", "transformers", compressed_tensors.PACKAGE})
"""The names of the readers of this plugin."""

_UNTESTED = frozenset({"hqq", "quanto"})
"""Methods that were never tested with a checkpoint, so that no hint promises them.

transformers 5.23 writes no checkpoint of them.
"""


def method_of(checkpoint: Checkpoint) -> str | None:
    """Return a checkpoint's quantization method; None if there is none, empty if it is not stated.

    Other programs state it in other places than transformers, which would read their weights as
    plain ones. Weights in a GGUF file are quantized by ``gguf``.
    """
    if weight_files.gguf_file(checkpoint) is not None:
        return GGUF
    config = checkpoint.config
    stated = config.get("quantization_config", config.get("compression_config"))
    if isinstance(stated, Mapping) and (stated.get("load_in_4bit") or stated.get("load_in_8bit")):
        return "bitsandbytes"
    if stated is not None:
        return str(stated.get("quant_method") or "") if isinstance(stated, Mapping) else ""
    if checkpoint.has("hf_quant_config.json"):
        return "modelopt"
    if checkpoint.has("quantize_config.json"):
        return "gptq"
    return "mlx" if isinstance(config.get("quantization"), Mapping) else None


def summary_of(checkpoint: Checkpoint) -> "Summary | None":
    """Return which weights are quantized; None if none is, or a package runs the layers.

    Raises:
        CheckpointError: they are not supported, or contradict ``quantization_config``.
    """
    method = method_of(checkpoint)
    if method not in EXPANDED and not (method is not None and is_read_here(checkpoint)):
        return None
    from vlmkit_quantized import formats  # imports NumPy

    return formats.summary_of(checkpoint)


def objection(checkpoint: Checkpoint) -> Objection | None:
    """Return why weights cannot be read; None if they can, or are not quantized."""
    from vlmkit_quantized import formats  # imports NumPy

    method = method_of(checkpoint)
    if method is None:
        return None
    if method == GGUF:
        return formats.objection(checkpoint)
    if reason := _statement_objection(checkpoint, method):
        return reason
    if is_read_here(checkpoint):
        return formats.objection(checkpoint)
    stated = checkpoint.config["quantization_config"]
    if method == compressed_tensors.PACKAGE and (
        reason := compressed_tensors.objection(checkpoint, stated)
    ):
        return reason
    return _absence(method)


def _statement_objection(checkpoint: Checkpoint, method: str) -> Objection | None:
    """Return why what a checkpoint states about its quantization is not enough; else None."""
    from vlmkit_quantized import formats  # imports NumPy

    if not method:
        return Objection(
            "its weights are quantized, and config.json does not say how",
            hint=UNQUANTIZED,
        )
    if method not in _NEEDED and method not in formats.FORMATS:
        return Objection(
            f"its weights are quantized by {method!r}, which is not supported",
            hint=UNQUANTIZED,
        )
    if "quantization_config" not in checkpoint.config:
        return Objection(
            f"its weights are quantized by {method!r}, and config.json has no "
            "'quantization_config'",
            hint="fetch a later form of it, which has; or " + UNQUANTIZED,
        )
    return None


def _absence(method: str) -> Objection | None:
    """Return an objection that names the packages that a method lacks; None if it lacks none."""
    absent = {name: pip for name, pip in _NEEDED[method] if not is_installed(name)}
    if not absent:
        return (
            compressed_tensors.version_objection() if method == compressed_tensors.PACKAGE else None
        )
    problem = (
        f"its weights are quantized by {method!r}, and to read them {' and '.join(absent)} must be "
        "installed"
    )
    if method in _UNTESTED:
        return Objection(f"{problem}, which was never tried with vlmkit", hint=UNQUANTIZED)
    return Objection(problem, hint=f"{install_command(*absent.values())}; or {UNQUANTIZED}")


def is_read_here(checkpoint: Checkpoint) -> bool:
    """Return whether weights are of a method whose tensors this plugin reads itself."""
    from vlmkit_quantized import formats  # imports NumPy

    method = method_of(checkpoint)
    if method == GGUF:
        return True
    return method in formats.FORMATS and formats.quantizes_weights_alone(checkpoint)


def quantized_objection(checkpoint: Checkpoint) -> str | None:
    """Return why the reader ``quantized`` cannot read weights; None if it can."""
    method = method_of(checkpoint)
    if method is None:
        return NOT_QUANTIZED
    if not is_read_here(checkpoint):
        return f"it does not read {method!r}"
    return objection(checkpoint)


def transformers_objection(checkpoint: Checkpoint) -> str | None:
    """Return why the reader ``transformers`` cannot read weights; None if it can."""
    method = method_of(checkpoint)
    if method is None:
        return NOT_QUANTIZED
    if method == compressed_tensors.PACKAGE or is_read_here(checkpoint):
        return f"it does not read {method!r}"
    return objection(checkpoint)


def compressed_objection(checkpoint: Checkpoint) -> str | None:
    """Return why the reader ``compressed-tensors`` cannot read weights; None if it can."""
    method = method_of(checkpoint)
    if method is None:
        return NOT_QUANTIZED
    if method != compressed_tensors.PACKAGE:
        return f"it reads {compressed_tensors.PACKAGE!r} only"
    if is_read_here(checkpoint):
        return "it reads quantized activations or cache only"
    return objection(checkpoint)


def expand(stated: Any) -> Any:
    """Return a quantization configuration, changed so that weights are converted to plain ones."""
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    if method in EXPANDED:
        return {**stated, "dequantize": True}
    return compressed_tensors.normalized(stated) if method == compressed_tensors.PACKAGE else stated


def is_installed(module: str) -> bool:
    """Return whether a module is installed; import at most its package."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the module's package is absent
        return False
