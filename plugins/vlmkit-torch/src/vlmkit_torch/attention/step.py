"""What one forward pass looks like to a layer's attention: who reads which cache slots.

A step is flat: ``[1, tokens]``, first one token of each decoding sequence, then the chunks of
prefilling ones. Slot indices and masks are made once for each kind of layer, not once for each
layer. Holds no keys or values (``kv_cache`` does) and computes no attention (``paged`` does).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch


class LayerKind(NamedTuple):
    """What decides which tokens a layer looks at.

    Attributes:
        name: the family's name for it, such as ``sliding_attention``.
        window: tokens that a token sees, itself included; None is all.
        section: the prompt is cut into sections of this many tokens that do not see each other.
    """

    name: str
    window: int | None = None
    section: int | None = None

    def first_visible(self, index: int) -> int:
        """Return the first token that token ``index`` sees by the kind's own rule."""
        first = 0
        if self.window is not None:
            first = max(first, index - self.window + 1)
        if self.section is not None:
            first = max(first, index // self.section * self.section)
        return first

    def first_visible_each(self, index: torch.Tensor) -> torch.Tensor:
        """The same for a tensor of tokens."""
        first = torch.zeros_like(index)
        if self.window is not None:
            first = torch.maximum(first, index - self.window + 1)
        if self.section is not None:
            first = torch.maximum(first, index // self.section * self.section)
        return first


@dataclass(frozen=True, slots=True)
class Visibility:
    """A family's own mask of a prompt, where it is not simply causal.

    Attributes:
        start: ``[seq]`` first token that each token sees.
        stop: ``[seq]`` one past the last that it sees.
        dense: ``[seq, seq]`` bool, only where some token's view has holes.
    """

    start: torch.Tensor
    stop: torch.Tensor
    dense: torch.Tensor | None = None


class Reach(NamedTuple):
    """What queries read.

    Attributes:
        slots: cache slots, those of each sequence in turn; a slice where they are neighbours,
            which are read without a copy.
        mask: additive, over the slots; None masks nothing.
    """

    slots: torch.Tensor | slice
    mask: torch.Tensor | None


@dataclass(slots=True)
class DecodeGroup:
    """One token of each of ``batch`` sequences, computed as one batch.

    Attributes:
        rows: where they stand in the flat step, half-open.
        slots: ``[batch, longest]`` cache slots; past a sequence's end, the slot of zeros.
        lengths: tokens of each sequence, the new one included.
        dtype: of the masks.
        run: the first slot, if there is one sequence and its slots are neighbours.
    """

    rows: tuple[int, int]
    slots: torch.Tensor
    lengths: list[int]
    dtype: torch.dtype
    run: int | None = None
    _reaches: dict[LayerKind, Reach] = field(default_factory=dict)

    def reach(self, kind: LayerKind) -> Reach:
        """Return slots ``[batch * width]`` and mask ``[batch, 1, 1, width]``."""
        if kind not in self._reaches:
            self._reaches[kind] = self._make_reach(kind)
        return self._reaches[kind]

    def _make_reach(self, kind: LayerKind) -> Reach:
        firsts = [kind.first_visible(length - 1) for length in self.lengths]
        if self.run is not None:
            return Reach(slice(self.run + firsts[0], self.run + self.lengths[0]), None)
        widths = [n - first for n, first in zip(self.lengths, firsts, strict=True)]
        width = max(widths)
        device = self.slots.device
        slots = self.slots
        if any(firsts):
            first = torch.tensor(firsts, device=device)[:, None]
            index = first + torch.arange(width, device=device)
            slots = slots.gather(1, index.clamp_(max=slots.shape[1] - 1))
        if min(widths) == width:
            return Reach(slots.reshape(-1), None)
        visible = torch.arange(width, device=device) < torch.tensor(widths, device=device)[:, None]
        return Reach(slots.reshape(-1), additive(visible, self.dtype)[:, None, None])


@dataclass(slots=True)
class Chunk:
    """Several tokens of one sequence.

    Attributes:
        rows: where they stand in the flat step, half-open.
        first: the first one's index in its sequence.
        slots: ``[first + count]`` cache slots of everything up to the chunk's end.
        dtype: of the masks.
        views: the family's own masks by kind of layer, cut to this chunk's tokens.
    """

    rows: tuple[int, int]
    first: int
    slots: torch.Tensor
    dtype: torch.dtype
    views: dict[str, Visibility] = field(default_factory=dict)
    _reaches: dict[LayerKind, Reach] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of tokens."""
        return self.rows[1] - self.rows[0]

    def is_plain(self, kind: LayerKind) -> bool:
        """Whether the chunk starts its sequence and each token sees all before it."""
        return not self.first and not self.views and not kind.first_visible(self.count - 1)

    def reach(self, kind: LayerKind) -> Reach:
        """Return slots ``[width]`` and mask ``[count, width]``."""
        if kind not in self._reaches:
            self._reaches[kind] = self._make_reach(kind)
        return self._reaches[kind]

    def _make_reach(self, kind: LayerKind) -> Reach:
        device = self.slots.device
        index = torch.arange(self.first, self.first + self.count, device=device)
        view = self.views.get(kind.name) or self.views.get("full_attention")
        start, stop = kind.first_visible_each(index), index + 1
        skipped = 0 if self.views else kind.first_visible(self.first)
        keys = torch.arange(skipped, len(self.slots), device=device)
        if view is not None:
            start = view.start if kind.name in self.views else torch.maximum(start, view.start)
            stop = view.stop
            if view.dense is None and start.max() <= skipped and stop.min() >= len(self.slots):
                return Reach(self.slots[skipped:], None)
        visible = (keys >= start[:, None]) & (keys < stop[:, None])
        if view is not None and view.dense is not None:
            visible &= view.dense
        return Reach(self.slots[skipped:], additive(visible, self.dtype))


@dataclass(slots=True)
class Step:
    """One forward pass over ``tokens`` tokens.

    Attributes:
        write_slots: ``[tokens]`` where each token's keys and values go.
        decodes: the leading tokens, one a sequence, in batches of like length.
        chunks: the others.
    """

    write_slots: torch.Tensor
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return 0 where visible and minus infinity elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, -torch.inf
    )
