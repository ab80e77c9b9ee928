"""Keeps linear layers of a quantized checkpoint packed while transformers loads the others.

transformers gets a placeholder of the right shape, which takes no memory. Afterwards each layer is
replaced by its packed form. Only plain linear layers of the decoder are packed, and only where the
operator is faster than dense weights, unless it is asked for.
"""

# ruff: noqa: SLF001 - the operations are private to torch.compile

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from vlmkit.errors import ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit_quantized.formats import IntegerLayer
from vlmkit_quantized.weight import QuantizedLinear
from vlmkit_torch.loading import int4_linear, int8_linear
from vlmkit_torch.loading.int4_linear import Int4Linear, TwoInt4Linear
from vlmkit_torch.loading.int8_linear import Int8Linear
from vlmkit_torch.loading.linear_modules import modules_of
from vlmkit_torch.loading.operator_linear import (
    DTYPE,
    OperatorLinear,
    agrees,
    has_operators,
    rows_to_expand,
)
from vlmkit_torch.loading.own_readers import QuantizedLayer
from vlmkit_torch.loading.packed_linear import PackedLinear
from vlmkit_torch.support import sizing
from vlmkit_torch.support.packed_forms import CPU, INT4, INT8, TWO_INT4, Kernel, Packing

log = logging.getLogger(__name__)

NUM_SEQUENCES = (1, 8)  # decoded at once, for which layers are timed
NUM_TIMES = 5
CACHE_BYTES = 2**26  # more than caches of CPUs hold for one core

Pack = Callable[[QuantizedLinear], PackedLinear | None]
Faster = Callable[[IntegerLayer], bool]
Product = Callable[[torch.Tensor], torch.Tensor]


class PackedLayers:
    """The layers of one model that stay packed.

    Args:
        checkpoint: the model.
        model: the same without numbers, in its precision.
        packing: how its layers are packed.
        is_faster: says whether a packed layer is faster than a dense one; None packs all.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: PreTrainedModel,
        packing: Packing,
        is_faster: Faster | None,
    ) -> None:
        self._name, self._dtype = checkpoint.name, model.dtype
        self._form, self._layers = packing.form, packing.layers
        self._packers = _packers(packing)
        self._modules = {
            name: path
            for name, path in modules_of(packing.layers, model, packing.also).items()
            if is_faster is None or is_faster(packing.layers[name])
        }
        self._packed: dict[str, PackedLinear] = {}
        self._num_packed: Counter[str] = Counter()
        self._agree: dict[tuple[Any, ...], bool] = {}
        self._rows_to_expand: dict[tuple[Any, ...], int | None] = {}

    def placeholder(self, name: str, weight: Any) -> torch.Tensor | None:
        """Pack a weight; return what transformers gets for it, or None if it stays dense.

        Raises:
            CheckpointError: its numbers contradict each other.
        """
        if name not in self._modules or not isinstance(weight, QuantizedLayer):
            return None
        kernel = self._form.kernel_of(self._layers[name])
        if kernel is None or (layer := weight.packed(partial(self._pack, kernel))) is None:
            return None
        self._packed[self._modules[name]] = layer
        self._num_packed[kernel.name] += 1
        return torch.zeros(1, 1, dtype=self._dtype).expand(weight.shape)  # not to be converted

    def _pack(self, kernel: Kernel, weight: QuantizedLinear) -> PackedLinear | None:
        """Return the layer of a weight; on a CPU, the first of each size is compared with it."""
        layer = self._packers[kernel](weight)
        if not isinstance(layer, OperatorLinear):
            return layer
        size = (*weight.codes.shape, weight.scales.shape[1], kernel)
        if size not in self._agree:
            self._agree[size] = agrees(layer, weight)
            if not self._agree[size]:
                log.warning(
                    "linear layers of %d outputs and %d inputs stay dense: %s computes other "
                    "values on this CPU",
                    *(*size[:2], kernel.name),
                )
            else:
                self._rows_to_expand[size] = rows_to_expand(layer)
        layer.expanded_from = self._rows_to_expand.get(size)
        return layer if self._agree[size] else None

    def install(self, model: PreTrainedModel) -> None:
        """Replace the layers of a model."""
        for path, layer in self._packed.items():
            layer.bias = model.get_submodule(path).bias  # type: ignore[assignment]
            model.set_submodule(path, layer)
        parts = (f"{num} for {kernel}" for kernel, num in sorted(self._num_packed.items()))
        log.info(
            "%d of %d quantized linear layers of model %r stay packed (%s); others are dense",
            *(len(self._packed), len(self._layers), self._name, ", ".join(parts) or "none"),
        )
        self._packed.clear()


def packed_layers(
    checkpoint: Checkpoint,
    config: PretrainedConfig,
    auto: Any,
    packing: Packing,
    dtype: torch.dtype | str,
) -> PackedLayers | None:
    """Return what keeps layers packed; None if this torch cannot.

    Args:
        checkpoint: with layers that may be packed.
        config: of the model.
        auto: the class of transformers that reads it.
        packing: how its layers are packed.
        dtype: its precision.

    Raises:
        ConfigError: packed layers are asked for, and this torch has no kernel for them.
    """
    if packing.form is CPU and not has_operators():
        if not packing.is_timed:
            raise ConfigError(
                f'engine.quantized_layers = "packed" needs a later torch than {torch.__version__}',
                hint='"dense" expands the layers',
            )
        return None
    with torch.device("meta"):
        model = auto.from_config(copy.deepcopy(config), dtype=dtype)
    is_faster = Timings().is_faster if packing.is_timed else None
    return PackedLayers(checkpoint, model, packing, is_faster)


def _packers(packing: Packing) -> Mapping[Kernel, Pack]:
    """Return what packs a weight for each kernel.

    Raises:
        ConfigError: the package of a kernel is absent.
    """
    if packing.form is CPU:
        return {
            INT4: int4_linear.packed,
            INT8: int8_linear.packed,
            TWO_INT4: int4_linear.packed_twice,
        }
    try:
        from vlmkit_torch.loading import triton_linear
    except ImportError as error:
        raise ConfigError(
            f'engine.quantized_layers = "packed" needs the package triton on a GPU: {error.name!r} '
            "is not installed",
            hint=f'{install_command("triton")}; "dense" expands the layers',
        ) from error
    return dict.fromkeys(packing.form.kernels, triton_linear.packed)


class PlannedPackedLinear(nn.Linear):
    """Stands for a packed layer in a model without numbers; oneDNN packs only plain layers."""


class Timings:
    """Compares packed with dense layers of the same sizes, one sequence and eight at a time."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kernel, int, int, int], bool] = {}
        self._cache = torch.ones(CACHE_BYTES // 4)

    def is_faster(self, layer: IntegerLayer) -> bool:
        """Return whether a packed layer takes less time than a dense one in bfloat16."""
        if (kernel := CPU.kernel_of(layer)) is None:
            return False
        size = kernel.group_size(layer.columns, layer.num_groups) or layer.columns
        key = (kernel, layer.rows, layer.columns, size)
        if key not in self._found:
            self._found[key] = self._compare(*key)
        return self._found[key]

    @torch.no_grad()
    def _compare(self, kernel: Kernel, rows: int, columns: int, size: int) -> bool:
        small = _example(kernel, rows, columns, size)
        dense = _dense(torch.ones(rows, columns, dtype=DTYPE))
        times = [0.0, 0.0]
        for num in NUM_SEQUENCES:
            x = torch.ones(num, columns, dtype=DTYPE)
            best = [min(each) for each in zip(*self._times((small, dense), x), strict=True)]
            times = [total + each for total, each in zip(times, best, strict=True)]
        log.info(
            "a linear layer of %d inputs and %d outputs takes %.3f ms with %s, and %.3f ms with "
            "dense weights in bfloat16",
            *(columns, rows, 1000 * times[0], kernel.name, 1000 * times[1]),
        )
        return times[0] < times[1]

    def _times(self, products: Seq[Product], x: torch.Tensor) -> Iterator[tuple[float, ...]]:
        """Yield the seconds of products, with weights that are in no cache."""
        for _ in range(NUM_TIMES):
            times = []
            for product in products:
                self._cache.add_(1)
                begin = perf_counter()
                product(x)
                times.append(perf_counter() - begin)
            yield tuple(times)


def _example(kernel: Kernel, rows: int, columns: int, size: int) -> OperatorLinear:
    """Return a packed layer of some sizes, to be timed."""
    if kernel is INT8:
        codes = torch.full((rows, columns), 0x5A, dtype=torch.int8)
        return Int8Linear(codes, torch.ones(rows, dtype=DTYPE), None)
    codes = torch.full((rows, columns // 2), 0x5A, dtype=torch.uint8)
    pairs = torch.ones(columns // size, rows, 2, dtype=DTYPE)
    if kernel is INT4:
        return Int4Linear(codes, pairs, None, None)
    return TwoInt4Linear(codes, codes.clone(), pairs, pairs.clone(), None)


def _dense(weight: torch.Tensor) -> Product:
    """Return the product with a dense weight, in the layout that an engine brings it into."""
    if not sizing.multiplies_bfloat16() or not torch._C._has_mkldnn:
        return partial(functional.linear, weight=weight)
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight, NUM_SEQUENCES[-1])
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, reordered, None, "none", [], "")
