"""The tokens of one forward pass, and where their keys and values are in the cache.

A step is flat: first one token of each decoding sequence, then the chunks of prefilling ones. All
of it is on the host, except the slots to write. A backend plans its reads from it, once for each
kind of layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from vlmkit_torch.attention.layer_kind import LayerKind, Visibility
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import AttentionBackend


class NewTokens(NamedTuple):
    """New tokens of one sequence.

    Attributes:
        first: index of the first one in its sequence.
        slots: ``[stop]`` cache slots of all tokens up to the last new one.
        views: the family's own masks by layer kind, cut to these tokens; empty if the tokens see
            earlier ones only.
    """

    first: int
    slots: np.ndarray
    views: dict[str, Visibility] = {}  # noqa: RUF012 - never changed

    @property
    def num_tokens(self) -> int:
        """Number of new tokens."""
        return len(self.slots) - self.first

    def visible(self, kind: LayerKind) -> Visibility:
        """Return which tokens of the sequence each new token sees in layers of a kind.

        Returns:
            ``start`` and ``stop``: int64 arrays ``[new]`` on the host; ``dense``: None, or a bool
            tensor ``[new, stop]`` on the device, where ``stop`` is the length of ``slots``.
        """
        index = np.arange(self.first, len(self.slots))
        start, stop = kind.first_visible_each(index), index + 1
        view = self.views.get(kind.name) or self.views.get("full_attention")
        if view is None:
            return Visibility(start, stop)
        start = view.start if kind.name in self.views else np.maximum(start, view.start)
        return Visibility(start, view.stop, view.dense)


@dataclass(frozen=True)
class StepTokens:
    """The tokens of one forward pass.

    Attributes:
        sequences: the new tokens of each sequence, in the order of the flat step.
        num_decodes: sequences at the start with one new token each, which sees earlier ones only.
        block_tokens: tokens in a block of the cache.
        zero_slot: the first slot of a block of zeros, which is never written.
        write_slots: ``[tokens]`` int64, on the device: the slots of the new tokens.
        table_blocks: least width of ``block_table``. If it is not zero, plans of steps with equal
            ``table_blocks`` and numbers of sequences must differ in the values of arrays alone.
    """

    sequences: tuple[NewTokens, ...]
    num_decodes: int
    block_tokens: int
    zero_slot: int
    write_slots: torch.Tensor
    table_blocks: int = 0

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether the step is padded to the shapes of other steps; it has decodes alone then."""
        return self.table_blocks > 0

    @property
    def table_tokens(self) -> int:
        """Tokens that a row of ``block_table`` has room for."""
        return int(self.block_table.shape[1]) * self.block_tokens

    @cached_property
    def query_starts(self) -> np.ndarray:
        """``[sequences + 1]`` first row of each sequence in the flat step, and the end."""
        return np.cumsum([0, *(sequence.num_tokens for sequence in self.sequences)])

    @cached_property
    def lengths(self) -> np.ndarray:
        """``[sequences]`` tokens of each sequence in the cache, new ones included."""
        return np.array([len(sequence.slots) for sequence in self.sequences], dtype=np.int64)

    @cached_property
    def block_table(self) -> np.ndarray:
        """``[sequences, blocks]`` blocks of each sequence, padded with the block of zeros."""
        size = self.block_tokens
        width = max(self.table_blocks, -(-int(self.lengths.max(initial=0)) // size))
        table = np.full((len(self.sequences), width), self.zero_slot // size, dtype=np.int64)
        for row, sequence in zip(table, self.sequences, strict=True):
            blocks = sequence.slots[::size] // size
            row[: len(blocks)] = blocks
        return table


def step_tokens(
    decodes: Iterable[NewTokens],
    chunks: Iterable[NewTokens],
    block_tokens: int,
    zero_slot: int,
    uploads: Uploads,
    table_blocks: int = 0,
) -> StepTokens:
    """Return the tokens of a step; the caller sends ``uploads``."""
    decodes = tuple(decodes)
    sequences = (*decodes, *chunks)
    writes = uploads.add(np.concatenate([each.slots[each.first :] for each in sequences]))
    return StepTokens(sequences, len(decodes), block_tokens, zero_slot, writes, table_blocks)


class Step:
    """One forward pass, with a backend's plan of it for each kind of layer.

    Args:
        tokens: of the pass.
        backend: that computes it.
    """

    def __init__(self, tokens: StepTokens, backend: AttentionBackend) -> None:
        self.tokens = tokens
        self._backend = backend
        self._plans: dict[LayerKind, Any] = {}

    def plan(self, kinds: Iterable[LayerKind], uploads: Uploads) -> None:
        """Plan layers of some kinds; the caller sends ``uploads``."""
        for kind in kinds:
            self._plans[kind] = self._backend.plan(self.tokens, kind, uploads)

    def plan_of(self, kind: LayerKind) -> Any:
        """Return the plan of layers of a kind."""
        if kind not in self._plans:  # the first time that such a layer is computed
            uploads = Uploads(self.tokens.write_slots.device)
            self.plan([kind], uploads)
            uploads.send()
        return self._plans[kind]
