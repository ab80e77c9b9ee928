"""The quantized linear layers of a checkpoint in the form of MatMulNBits, without any rounding.

Codes, scales and zero points are those of the checkpoint. Codes of fewer bits take fields of 4 or
8, and a group is one or several blocks with the same scale. Layers are found by their values,
because transformers renames, joins and splits weights when it loads them. Knows no format:
vlmkit-quantized does. Creates no node; ``quantize`` does.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.export.stored_form import AGAIN, block_of, field_bits
from vlmkit_onnx.folder.manifest import PlainPrecision
from vlmkit_quantized import formats
from vlmkit_quantized.formats import ReadTensor, ReadWeight
from vlmkit_quantized.weight import Layout, QuantizedLinear
from vlmkit_torch.support import quantization

SEED = 7
log = logging.getLogger(__name__)
SLICE_ROWS = 1024  # rows whose keys are computed at a time

Keys = NDArray[np.uint64]


class BlockWeights(NamedTuple):
    """A weight in the form of MatMulNBits.

    Attributes:
        bits: of a code, 4 or 8.
        width: the number of inputs.
        block: adjacent inputs that share a scale and a zero point.
        codes: ``[out, blocks, block * bits / 8]``, two codes of 4 bits in a byte, the first low.
        scales: ``[out, blocks]``, float32.
        zeros: the code of zero of each block, packed like codes: ``[out, blocks * bits / 8]``.
    """

    bits: int
    width: int
    block: int
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor


def block_weights(linear: QuantizedLinear, layout: Layout) -> BlockWeights:
    """Return a weight in the form of MatMulNBits; its layout must have no flaw."""
    rows, columns = linear.codes.shape
    bits, block = field_bits(layout.bits), block_of(layout, columns)
    starts = np.arange(0, columns, block)
    groups = starts // -(-columns // linear.scales.shape[1])
    if linear.column_groups is not None:
        groups = linear.column_groups[starts]
    zeros = np.zeros((1, 1), np.uint8)
    if linear.zero_points is not None:
        zeros = linear.zero_points.astype(np.uint8)
    of_blocks = zeros if zeros.shape == (1, 1) else zeros[:, groups]
    codes = np.pad(linear.codes, ((0, 0), (0, -columns % block)))
    return BlockWeights(
        bits=bits,
        width=columns,
        block=block,
        codes=torch.from_numpy(_fields(codes, bits).reshape(rows, len(starts), -1)),
        scales=torch.from_numpy(np.ascontiguousarray(linear.scales[:, groups])),
        zeros=torch.from_numpy(_fields(np.broadcast_to(of_blocks, (rows, len(starts))), bits)),
    )


def _fields(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return codes ``[rows, n]`` in fields of 4 or 8 bits."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return even[:, 0::2] | even[:, 1::2] << np.uint8(4)


class _Stored(NamedTuple):
    """A quantized weight and its form."""

    weight: ReadWeight | ReadTensor
    layout: Layout


class StoredLayers:
    """The quantized weights of a checkpoint, found by the values that transformers loaded.

    Attributes:
        plain: the precision of other linear layers.

    Args:
        checkpoint: the files; :func:`.stored_form.objection` must be None.
        plain: the precision of other linear layers.
    """

    def __init__(self, checkpoint: Checkpoint, plain: PlainPrecision = "fp32") -> None:
        self.plain = plain
        self._has_rounded = False
        self._found: set[str] = set()
        self._name = checkpoint.name
        self._method = str(quantization.method_of(checkpoint))
        found = formats.weights(checkpoint)
        self._weights = {
            name: _Stored(weight, weight.layout) for name, weight in found.items() if weight.layout
        }
        self._indexes: dict[tuple[torch.dtype, int], _Index] = {}

    @property
    def precision(self) -> str:
        """What the layers are stored as, such as ``gptq-int4`` or ``gptq-int4+w8a8``."""
        bits = {self._weights[name].layout.bits for name in self._found}
        stored = "-".join([self._method, *(f"int{each}" for each in sorted(bits))])
        return f"{stored}+{self.plain}" if self._has_rounded else stored

    def finish(self) -> None:
        """Check that layers were found; warn of quantized weights that become floats.

        Raises:
            CheckpointError: there are none.
        """
        if not self._found:
            raise CheckpointError(
                f"model {self._name!r} has quantized weights, and none is a linear layer of its "
                "decoder",
                hint=AGAIN,
            )
        others = [name for name in self._weights if name not in self._found and "embed" not in name]
        if others:
            log.warning(
                "%d quantized weights of model %r, such as %r, are no linear layers of its "
                "decoder, and are expanded to floats",
                *(len(others), self._name, others[0]),
            )

    def find(self, values: torch.Tensor) -> BlockWeights | None:
        """Return the stored form of a weight ``[out, in]``; None if the checkpoint has it plain.

        Args:
            values: the weight as it was loaded, in the type of the model.

        Raises:
            CheckpointError: numbers of the checkpoint contradict each other.
        """
        rows = self._index(values.dtype, values.shape[1]).find(row_keys(values))
        if rows is None:
            self._has_rounded |= self.plain != "fp32"
            return None
        layouts = {self._weights[name].layout for name, _ in rows}
        if len({field_bits(layout.bits) for layout in layouts}) > 1:
            names = " and ".join(sorted({repr(name) for name, _ in rows}))
            raise CheckpointError(
                f"the integers of {names}, which the family's code joins, have different sizes",
                hint=AGAIN,
            )
        layout = min(layouts, key=lambda each: block_of(each, values.shape[1]))
        parts = [self._weights[name].weight.packed().of_rows(of_name) for name, of_name in rows]
        if not torch.equal(_dense(parts, values.dtype), values):
            return None
        self._found |= {name for name, _ in rows}
        return _concatenated([block_weights(part, layout) for part in parts])

    def _index(self, dtype: torch.dtype, columns: int) -> "_Index":
        """Return the rows of all weights with as many columns, by their values in a type."""
        key = dtype, columns
        if key not in self._indexes:
            self._indexes[key] = _Index(
                (name, row_keys(torch.from_numpy(stored.weight.dense()).to(dtype)))
                for name, stored in self._weights.items()
                if stored.weight.shape[1] == columns
            )
        return self._indexes[key]


def _dense(parts: Iterable[QuantizedLinear], dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([torch.from_numpy(part.dense()).to(dtype) for part in parts])


def _concatenated(parts: list[BlockWeights]) -> BlockWeights:
    first = parts[0]
    return first._replace(
        codes=torch.cat([part.codes for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=torch.cat([part.zeros for part in parts]),
    )


class _Index:
    """Finds rows of weights by their keys.

    Args:
        weights: the name of each weight, and the keys of its rows.
    """

    def __init__(self, weights: Iterable[tuple[str, Keys]]) -> None:
        self._names: list[str] = []
        self._whole: dict[bytes, str] = {}
        keys, owners, rows = [], [], []
        for number, (name, own) in enumerate(weights):
            self._names.append(name)
            self._whole.setdefault(own.tobytes(), name)
            keys.append(own)
            owners.append(np.full(len(own), number))
            rows.append(np.arange(len(own)))
        order = np.argsort(np.concatenate(keys or [np.zeros(0, np.uint64)]), kind="stable")
        self._keys, self._owners, self._rows = (
            np.concatenate(each)[order] if keys else np.zeros(0, np.int64)
            for each in (keys, owners, rows)
        )

    def find(self, keys: Keys) -> list[tuple[str, NDArray[np.intp]]] | None:
        """Return whose rows have these keys, in order, or None if a key is unknown.

        Returns:
            The name of a weight and some of its rows, for each run of rows of one weight.
        """
        if name := self._whole.get(keys.tobytes()):
            return [(name, np.arange(len(keys)))]
        if not len(self._keys):
            return None
        places = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        if not np.array_equal(self._keys[places], keys):
            return None
        owners, rows = self._owners[places], self._rows[places]
        ends = [*(np.flatnonzero(np.diff(owners)) + 1), len(owners)]
        return [
            (self._names[owners[start]], rows[start:end])
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]


def row_keys(values: torch.Tensor) -> Keys:
    """Return a number for each row of ``[rows, columns]``; equal rows have equal ones."""
    random = np.random.default_rng(SEED)
    factors = random.integers(0, 2**64, values.shape[1], np.uint64, endpoint=False) | np.uint64(1)
    starts = range(0, len(values), SLICE_ROWS)
    return np.concatenate([_keys(values[i : i + SLICE_ROWS], factors) for i in starts])


def _keys(values: torch.Tensor, factors: Keys) -> Keys:
    kind = torch.int32 if values.dtype == torch.float32 else torch.int16
    numbers = (values.detach() + 0).contiguous().view(kind).numpy()  # turns -0 into 0
    keys: Keys = (numbers.astype(np.int64).view(np.uint64) * factors).sum(1, dtype=np.uint64)
    return keys
