"""What settings say about rounding plain weights while they are read, and what contradicts it.

By headers and names: imports no torch and reads no weight. ``loading.rounded_weights`` finds the
layers exactly.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlmkit.errors import ConfigError
from vlmkit.kit import safetensors_header
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_quantized.rounding_schemes import ROUNDING_SCHEMES, RoundingScheme
from vlmkit_torch.settings import ComputeSettings, EngineSettings
from vlmkit_torch.support import packed_forms, quantization

if TYPE_CHECKING:
    from vlmkit_quantized.formats import IntegerLayer

STORED = frozenset({"F32", "F16", "BF16"})
MATRIX_AXES = 2
SUFFIX = ".weight"
_PLAIN = re.compile(r"\.experts\.|embed|norm")
_HEAD = re.compile(r"(^|\.)lm_head\.")
_TOWER = re.compile(r"vis(ion|ual)|tower|image|audio|projector")


@dataclass(frozen=True, slots=True)
class RoundingRequest:
    """Plain weights are to be rounded.

    Attributes:
        scheme: how.
        also: parts of a model beside the decoder whose linear layers are rounded, too.
    """

    scheme: RoundingScheme
    also: frozenset[str]

    def layer(self, rows: int, columns: int) -> "IntegerLayer | None":
        """Return a linear layer as rounding makes it; None if it is empty or no group size fits."""
        from vlmkit_quantized.formats import IntegerLayer  # imports NumPy

        size = self.scheme.group_size(columns)
        if not (rows and size):
            return None
        return IntegerLayer(rows, columns, columns // size, self.scheme.bits)


def request_of(settings: ComputeSettings) -> RoundingRequest | None:
    """Return what settings ask for; None if weights stay as they are.

    Raises:
        ConfigError: they name parts that are to be rounded, and no scheme.
    """
    if not isinstance(settings, EngineSettings):
        return None
    if settings.quantize is not None:
        scheme = ROUNDING_SCHEMES[settings.quantize]
        return RoundingRequest(scheme, frozenset(settings.quantize_also))
    if settings.quantize_also:
        raise ConfigError(
            f"engine.quantize_also = {list(settings.quantize_also)!r} has no meaning without "
            "engine.quantize",
            hint=f"engine.quantize is one of {', '.join(map(repr, ROUNDING_SCHEMES))}",
        )
    return None


def refuse_quantized(checkpoint: Checkpoint, request: RoundingRequest) -> None:
    """Refuse to round weights that are quantized already.

    Raises:
        ConfigError: they are.
    """
    method = quantization.method_of(checkpoint)
    if method is not None:
        raise ConfigError(
            f"engine.quantize = {request.scheme.name!r}: the weights of model {checkpoint.name!r} "
            f"are quantized already{f', by {method!r}' if method else ''}; rounding them again "
            "would lose more",
            hint="leave engine.quantize out, or load the model that it was made from",
        )


def layers_by_headers(
    checkpoint: Checkpoint, request: RoundingRequest
) -> Mapping[str, "IntegerLayer"]:
    """Return the layers that are rounded and packed on a CPU, by the names of tensors.

    A family may have a matrix that is no linear layer, which names do not show.
    """
    return checkpoint.once(
        f"vlmkit_torch.rounding_request {request}", lambda: _found(checkpoint, request)
    )


def _found(checkpoint: Checkpoint, request: RoundingRequest) -> Mapping[str, "IntegerLayer"]:
    found = {}
    for file in safetensors_header.weights_of(checkpoint).files:
        header, _ = safetensors_header.read_header(checkpoint.path / file)
        for name, tensor in header.items():
            is_matrix = len(tensor.shape) == MATRIX_AXES and name.endswith(SUFFIX)
            if not is_matrix or tensor.dtype not in STORED or not _is_wanted(name, request):
                continue
            layer = request.layer(*tensor.shape)
            if layer is not None and packed_forms.CPU.kernel_of(layer) is not None:
                found[name] = layer
    return found


def _is_wanted(name: str, request: RoundingRequest) -> bool:
    if _PLAIN.search(name) or is_router(name.removesuffix(SUFFIX)):
        return False
    if _TOWER.search(name):
        return "tower" in request.also
    return "head" in request.also or not _HEAD.search(name)


def is_router(path: str) -> bool:
    """Return whether a layer chooses experts; its numbers decide which ones compute."""
    return path.rpartition(".")[2] in ("gate", "router", "shared_expert_gate")
