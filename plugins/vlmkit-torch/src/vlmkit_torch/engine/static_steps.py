"""Decode steps whose tensors keep their shapes and addresses, which CUDA graphs need.

Steps of similar size share a shape: rows of padding follow the sequences, and the table of blocks
is wider than the longest one. Chooses and keeps shapes; ``batch`` fills the tensors, and
``cuda_graphs`` repeats the steps.
"""

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.step import WorkItem
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import AttentionBackend

MIN_TABLE_TOKENS = 256
MAX_SHAPES = 64
"""Shapes that are kept. Each has a buffer of half a MiB at least, and a graph."""
MAX_PADDING = 4
"""Most tokens of a table beside those of its sequences, where padding is read, too."""


class StepShape(NamedTuple):
    """What steps with the same tensors have in common.

    Attributes:
        num_rows: sequences, and rows of padding.
        table_tokens: tokens that a row of the table of blocks has room for.
        num_axes: axes of the positions.
    """

    num_rows: int
    table_tokens: int
    num_axes: int


class StaticStep:
    """The tensors of steps of one shape.

    Attributes:
        shape: of the steps.
        table_blocks: width of the table of blocks.
        uploads: carries arrays to the same tensors in each step.
        is_settled: whether the last two steps had tensors of the same shapes.

    Args:
        shape: see above.
        block_tokens: tokens in a block of the cache.
        device: that computes.
    """

    def __init__(self, shape: StepShape, block_tokens: int, device: torch.device) -> None:
        self.shape = shape
        self.table_blocks = -(-shape.table_tokens // block_tokens)
        self.uploads = Uploads(device, keeps_addresses=True)
        self.is_settled = False
        self._shapes: list[tuple[int, ...]] = []

    def note_shapes(self) -> None:
        """Compare the arrays that are about to be sent with those of the step before."""
        self.is_settled = self.uploads.shapes == self._shapes
        self._shapes = self.uploads.shapes


class StaticSteps:
    """Finds the static step of work items.

    Args:
        limits: of the engine.
        block_tokens: tokens in a block of the cache.
        device: that computes.
        backend: of attention.
    """

    def __init__(
        self,
        limits: EngineLimits,
        block_tokens: int,
        device: torch.device,
        backend: AttentionBackend,
    ) -> None:
        self._limits = limits
        self._block_tokens = block_tokens
        self._device = device
        self._backend = backend
        self._steps: dict[StepShape, StaticStep] = {}  # the one that was used last is the last

    def step_for(self, items: Seq[WorkItem], num_axes: int) -> StaticStep | None:
        """Return the static step of decodes; None if padding would cost too much.

        Args:
            items: decodes, ordered from short sequences to long ones.
            num_axes: axes of their positions.
        """
        capabilities, limits = self._backend.capabilities, self._limits
        if not capabilities.fixed_shapes:
            return None
        num_rows = min(_rounded_rows(len(items)), limits.max_sequences)
        table_tokens = _rounded_tokens(items[-1].stop, limits.max_sequence_tokens)
        if not capabilities.reads_in_place:
            num_tokens = sum(max(item.stop, MIN_TABLE_TOKENS) for item in items)
            if num_rows * table_tokens > MAX_PADDING * num_tokens:
                return None
        shape = StepShape(num_rows, table_tokens, num_axes)
        step = self._steps.pop(shape, None) or StaticStep(shape, self._block_tokens, self._device)
        self._steps[shape] = step
        if len(self._steps) > MAX_SHAPES:
            del self._steps[next(iter(self._steps))]
        return step

    def clear(self) -> None:
        """Drop all tensors."""
        self._steps.clear()


def _rounded_rows(num_rows: int) -> int:
    """Return a power of two up to eight, or else a multiple of eight."""
    return 1 << (num_rows - 1).bit_length() if num_rows <= 8 else -(-num_rows // 8) * 8


def _rounded_tokens(num_tokens: int, max_tokens: int) -> int:
    """Return a power of two, but no more than a sequence may have."""
    rounded = max(MIN_TABLE_TOKENS, 1 << (num_tokens - 1).bit_length())
    return max(num_tokens, min(rounded, max_tokens))
