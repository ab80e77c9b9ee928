"""Packs linear layers into the layout that oneDNN reads fastest on a CPU, while a model serves.

Several sequences at once multiply a few rows with large matrices. Plain ``linear`` reads weights in
an order that is slow at such sizes. Packed weights are read several times faster, and faster still
if layers of the same input are read as one. Packing takes as long as dozens of tokens. It therefore
begins after a few sequences, and each step packs one group of layers. Weights are never in memory
twice.
"""

# ruff: noqa: SLF001 - the operations are private to torch.compile; each packed group is compared

import logging
from collections.abc import Iterator, Sequence as Seq
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vlmkit_torch.devices import faults
from vlmkit_torch.loading.mapped_files import MappedFiles
from vlmkit_torch.model.views import Views
from vlmkit_torch.self_checks.text_check import TOLERANCE
from vlmkit_torch.support import sizing

log = logging.getLogger(__name__)

FIRST_SEQUENCES = 2  # served with plain weights
CHECKED_ROWS = 2
PADDED_ROWS = ((8, 1), (32, 4), (64, 8), (128, 16))  # up to so many, multiples of these
MAX_PADDING = 32
PACKED_FOR_ROWS = 8
MIN_NUMBERS = 2**16  # of a matrix; below this, the call costs more than the multiplication
SHARED_INPUT_LAYERS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))


class PackedWeights:
    """Weights of linear layers that mostly receive the same input, read as one.

    A layer that receives another input computes all of them for it: slower, but correct.

    Args:
        linears: the layers; their own weights may be freed afterwards.
    """

    def __init__(self, linears: Seq[nn.Linear]) -> None:
        weights: list[Any] = [linear.weight for linear in linears]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)  # a head's is large
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
        biases: list[Any] = [linear.bias for linear in linears]  # all, or none of them
        self._bias = None if biases[0] is None else torch.cat(biases)
        self._sizes = [linear.out_features for linear in linears]
        self._rows: torch.Tensor | None = None
        self._products: dict[int, torch.Tensor] = {}

    def product(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """Return one layer's ``rows @ weight.T + bias``; keep the others' for their calls."""
        if rows is not self._rows or index not in self._products:
            out = self._multiplied(rows)
            parts = torch.split(out, self._sizes, -1)
            self._rows, self._products = rows, dict(enumerate(parts))
        own = self._products.pop(index)
        if not self._products:
            self._rows = None
        return own

    def _multiplied(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        num, num_computed = len(flat), num_computed_rows(len(flat))
        if num_computed > num:
            padded = flat.new_zeros(num_computed, flat.shape[-1])
            padded[:num] = flat
            flat = padded
        out = torch.ops.mkldnn._linear_pointwise(flat, self._packed, self._bias, "none", [], "")
        product: torch.Tensor = out[:num].view(*rows.shape[:-1], -1)
        return product


class PackedLinear(nn.Module):
    """A linear layer with packed weights, without the original ones.

    Args:
        linear: the layer.
        weights: of this layer and others.
        index: of this layer among them.
    """

    def __init__(self, linear: nn.Linear, weights: PackedWeights, index: int = 0) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._weights = weights
        self._index = index

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T + bias``."""
        return self._weights.product(self._index, rows)


def num_computed_rows(num_rows: int) -> int:
    """Return the number of rows with which a product of some rows is computed.

    oneDNN compiles kernels for each number of rows and each size of layers, and never frees them:
    a quarter of a MiB each. Zeros fill the difference to a few numbers.
    """
    step = next((step for limit, step in PADDED_ROWS if num_rows <= limit), MAX_PADDING)
    return -(-num_rows // step) * step


def is_faster(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether packed weights of a precision are read faster on a device of this machine."""
    has_kernels = dtype == torch.float32 or (
        dtype == torch.bfloat16 and sizing.multiplies_bfloat16()
    )
    is_plain = device.type == "cpu" and has_kernels
    return is_plain and torch._C._has_mkldnn and _has_operations()


def packed_sizes(decoder: nn.Module, head: nn.Module) -> Iterator[tuple[int, int]]:
    """Yield inputs and outputs of each group of layers of a decoder, and of its head.

    Args:
        decoder: plain, also one without numbers.
        head: its output layer.
    """
    for parent in [*decoder.modules()]:
        for linears in _groups(parent):
            yield linears[0].in_features, sum(linear.out_features for linear in linears)
    if _is_packable(head):
        yield head.in_features, head.out_features  # type: ignore[misc]


class Packing:
    """Packs the linear layers of a decoder and its head in place, one group at a time.

    Args:
        views: of the model; only the thread that calls :meth:`after_step` uses them.
        files: that weights may be mapped from.
    """

    def __init__(self, views: Views, files: Seq[Path]) -> None:
        self._views = views
        self._files = files
        self._num_sequences = 0
        self._groups: Iterator[None] | None = self._pack()

    def count_sequence(self) -> None:
        """Count a sequence that was served."""
        self._num_sequences += 1

    def after_step(self) -> None:
        """Pack the next group if enough sequences were served."""
        if self._groups is None or self._num_sequences < FIRST_SEQUENCES:
            return
        try:
            next(self._groups, None)
        except Exception as error:  # the remaining layers stay plain
            if not faults.is_out_of_memory(error):
                raise
            log.warning("linear layers are packed no further: memory ran out")
            self._groups = None

    def _pack(self) -> Iterator[None]:
        for parent in list(self._views.decoder.modules()):
            linears = _packable(parent)
            for names in _names_of_groups(parent, linears):
                packed = self._packed([linears[name] for name in names])
                if packed is None:
                    return
                for name, layer in zip(names, packed, strict=True):
                    setattr(parent, name, layer)
                del packed
                self._drop([linears.pop(name) for name in names])
                yield
        yield from self._pack_head()

    def _pack_head(self) -> Iterator[None]:
        """Pack the head, unless it shares its weights with the embedding.

        Packed, shared weights would be in memory twice. Mapped weights are the exception: only the
        embedding rows that are read become resident.
        """
        model: Any = self._views.model
        head, embedding = model.get_output_embeddings(), self._views.decoder.get_input_embeddings()
        if not _is_packable(head):
            return
        is_tied = head.weight.data_ptr() == embedding.weight.data_ptr()
        if is_tied and not MappedFiles(self._files).hold(head.weight):
            return
        packed = self._packed([head])
        if packed is None:
            return
        model.set_output_embeddings(packed[0])
        self._views.renew_head()
        self._drop([head])
        yield

    def _packed(self, linears: Seq[nn.Linear]) -> "list[PackedLinear] | None":
        """Return the layers packed; None if this machine's kernels compute other results."""
        weights = PackedWeights(linears)
        packed = [PackedLinear(linear, weights, index) for index, linear in enumerate(linears)]
        generator = torch.Generator().manual_seed(0)
        shape = (1, CHECKED_ROWS, linears[0].in_features)
        rows = torch.randn(shape, generator=generator).to(linears[0].weight.dtype)
        expected = torch.cat([linear(rows) for linear in linears], -1).float()
        found = torch.cat([layer(rows) for layer in packed], -1).float()
        difference, largest = (found - expected).abs().max(), expected.abs().max()
        if difference <= TOLERANCE[rows.dtype] * largest:
            return packed
        log.warning("linear layers stay plain: packed, they differ by %.2g", difference.item())
        return None

    def _drop(self, linears: Seq[nn.Linear]) -> None:
        """Drop mapped weights from memory; other weights are freed with their last reference."""
        mapped = MappedFiles(self._files)
        for linear in linears:
            mapped.drop(linear.weight.data)


def _groups(parent: nn.Module) -> Iterator[list[Any]]:
    """Yield the layers of a module that are packed together."""
    linears = _packable(parent)
    for names in _names_of_groups(parent, linears):
        yield [linears[name] for name in names]


def _packable(parent: nn.Module) -> dict[str, Any]:
    return {name: child for name, child in parent.named_children() if _is_packable(child)}


def _names_of_groups(parent: nn.Module, linears: dict[str, Any]) -> list[tuple[str, ...]]:
    if "Cross" in type(parent).__name__:  # keys of images, queries of text
        return [(name,) for name in linears]
    return _layer_groups(linears)


def _layer_groups(linears: dict[str, nn.Linear]) -> list[tuple[str, ...]]:
    """Return the names of layers that are read as one, then each other layer alone."""
    groups = [names for names in SHARED_INPUT_LAYERS if _are_alike([linears.get(n) for n in names])]
    grouped = {name for names in groups for name in names}
    return [*groups, *((name,) for name in linears if name not in grouped)]


def _are_alike(linears: Seq[nn.Linear | None]) -> bool:
    """Return whether all layers exist, have one input size, and all or none have a bias."""
    there = [linear for linear in linears if linear is not None]
    forms = {(linear.in_features, linear.bias is None) for linear in there}
    return len(there) == len(linears) and len(forms) == 1


def _is_packable(module: Any) -> bool:
    """Return whether a module is large and only multiplies by plain numbers.

    Layers of quantized models may have their own ``forward``, or weights of another tensor class.
    """
    if type(module) is not nn.Linear or "forward" in vars(module):
        return False
    weight = module.weight
    return type(weight) is nn.Parameter and weight.numel() >= MIN_NUMBERS


def _has_operations() -> bool:
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )
