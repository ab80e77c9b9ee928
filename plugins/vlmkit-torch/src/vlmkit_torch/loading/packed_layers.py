"""Keeps linear layers of a quantized checkpoint packed while transformers loads the others.

transformers gets a placeholder of the right shape, which takes no memory. Afterwards each layer is
replaced by its packed form. Only plain linear layers of the decoder are packed, and only where the
operator is faster than dense weights, unless it is asked for.
"""

# ruff: noqa: SLF001 - the operations are private to torch.compile

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from vlmkit.errors import ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit_quantized.formats import IntegerLayer
from vlmkit_quantized.weight import QuantizedLinear
from vlmkit_torch.loading import int4_linear
from vlmkit_torch.loading.int4_linear import DTYPE, Int4Linear, agrees, has_operators
from vlmkit_torch.loading.own_readers import QuantizedLayer
from vlmkit_torch.loading.packed_linear import PackedLinear
from vlmkit_torch.model.nesting import decoder_of
from vlmkit_torch.support import sizing
from vlmkit_torch.support.packed_forms import INT4, PackedForm, Packing

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
        form: of packed layers.
        is_faster: says whether a packed layer is faster than a dense one; None packs all.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: PreTrainedModel,
        form: PackedForm,
        is_faster: Faster | None,
    ) -> None:
        self._name, self._dtype = checkpoint.name, model.dtype
        self._form, self._layer_of = form, _packer(form)
        found = form.layers_of(checkpoint)
        modules = modules_of(found, model)
        self._num_quantized = len(found)
        self._modules = {
            name: path
            for name, path in modules.items()
            if is_faster is None or is_faster(found[name])
        }
        self._packed: dict[str, PackedLinear] = {}
        self._agree: dict[tuple[int, ...], bool] = {}

    def placeholder(self, name: str, weight: Any) -> torch.Tensor | None:
        """Pack a weight; return what transformers gets for it, or None if it stays dense.

        Raises:
            CheckpointError: its numbers contradict each other.
        """
        if name not in self._modules or not isinstance(weight, QuantizedLayer):
            return None
        layer = weight.packed(self._pack)
        if layer is None:
            return None
        self._packed[self._modules[name]] = layer
        return torch.zeros(1, 1, dtype=self._dtype).expand(weight.shape)  # not to be converted

    def _pack(self, weight: QuantizedLinear) -> PackedLinear | None:
        """Return the layer of a weight; on a CPU, the first of each size is compared with it."""
        layer = self._layer_of(weight)
        if not isinstance(layer, Int4Linear):
            return layer
        size = (*weight.codes.shape, weight.scales.shape[1])
        if size not in self._agree:
            self._agree[size] = agrees(layer, weight)
            if not self._agree[size]:
                log.warning(
                    "linear layers of %d outputs and %d inputs stay dense: torch's 4-bit operator "
                    "computes other values on this CPU",
                    *size[:2],
                )
        return layer if self._agree[size] else None

    def install(self, model: PreTrainedModel) -> None:
        """Replace the layers of a model."""
        for path, layer in self._packed.items():
            layer.bias = model.get_submodule(path).bias  # type: ignore[assignment]
            model.set_submodule(path, layer)
        log.info(
            "%d of %d quantized linear layers of model %r stay packed, for %s; others are dense",
            *(len(self._packed), self._num_quantized, self._name, self._form.kernel),
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
    if packing.form is INT4 and not has_operators():
        if not packing.is_timed:
            raise ConfigError(
                f'engine.quantized_layers = "packed" needs a later torch than {torch.__version__}',
                hint='"dense" expands the layers',
            )
        return None
    with torch.device("meta"):
        model = auto.from_config(copy.deepcopy(config), dtype=dtype)
    is_faster = Timings().is_faster if packing.is_timed else None
    return PackedLayers(checkpoint, model, packing.form, is_faster)


def _packer(form: PackedForm) -> Pack:
    """Return what packs a weight.

    Raises:
        ConfigError: the package of the kernel is absent.
    """
    if form is INT4:
        return int4_linear.packed
    try:
        from vlmkit_torch.loading import triton_linear
    except ImportError as error:
        raise ConfigError(
            f'engine.quantized_layers = "packed" needs the package triton on a GPU: {error.name!r} '
            "is not installed",
            hint=f'{install_command("triton")}; "dense" expands the layers',
        ) from error
    return triton_linear.packed


def modules_of(names: Mapping[str, IntegerLayer], model: PreTrainedModel) -> dict[str, str]:
    """Return the path of the linear layer of each weight, of those that a model has in its decoder.

    Args:
        names: the layers, by the names of their weights in a plain checkpoint.
        model: the model, without numbers.
    """
    conversions = get_model_conversion_mapping(model)
    renamings = [one for one in conversions if isinstance(one, WeightRenaming)]
    converters = [one for one in conversions if isinstance(one, WeightConverter)]
    prefix, known = model.base_model_prefix, model.state_dict()
    own = set(decoder_of(model).modules())
    found = {}
    for name, layer in names.items():
        renamed, merged_by = rename_source_key(name, renamings, converters, prefix, known)
        path = renamed.removesuffix(".weight")
        if merged_by is not None or renamed not in known:
            continue
        module = model.get_submodule(path)
        has_sizes = known[renamed].shape == (layer.rows, layer.columns)
        if type(module) is nn.Linear and module in own and has_sizes:
            found[name] = path
    return found


class PlannedPackedLinear(nn.Linear):
    """Stands for a packed layer in a model without numbers; oneDNN packs only plain layers."""


class Timings:
    """Compares packed with dense layers of the same sizes, one sequence and eight at a time."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, int], bool] = {}
        self._cache = torch.ones(CACHE_BYTES // 4)

    def is_faster(self, layer: IntegerLayer) -> bool:
        """Return whether a packed layer takes less time than a dense one in bfloat16."""
        size = INT4.group_size(layer.columns, layer.num_groups) or layer.columns
        key = (layer.rows, layer.columns, size)
        if key not in self._found:
            self._found[key] = self._compare(*key)
        return self._found[key]

    @torch.no_grad()
    def _compare(self, rows: int, columns: int, size: int) -> bool:
        codes = torch.full((rows, columns // 2), 0x5A, dtype=torch.uint8)
        scales = torch.ones(columns // size, rows, 2, dtype=DTYPE)
        small = Int4Linear(codes, scales, None, None)
        dense = _dense(torch.ones(rows, columns, dtype=DTYPE))
        times = [0.0, 0.0]
        for num in NUM_SEQUENCES:
            x = torch.ones(num, columns, dtype=DTYPE)
            best = [min(each) for each in zip(*self._times((small, dense), x), strict=True)]
            times = [total + each for total, each in zip(times, best, strict=True)]
        log.info(
            "a linear layer of %d inputs and %d outputs takes %.3f ms with packed 4-bit weights, "
            "and %.3f ms with dense ones in bfloat16",
            *(columns, rows, 1000 * times[0], 1000 * times[1]),
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


def _dense(weight: torch.Tensor) -> Product:
    """Return the product with a dense weight, in the layout that an engine brings it into."""
    if not sizing.multiplies_bfloat16() or not torch._C._has_mkldnn:
        return partial(functional.linear, weight=weight)
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight, NUM_SEQUENCES[-1])
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, reordered, None, "none", [], "")
