"""The cache slots that the queries of a step read in a layer, and which of them each query sees.

Computed with numpy, on the host; only index arrays go to the device. Stores no keys or values
(``kv_cache`` does) and computes no attention (``paged`` does).
"""

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from vlmkit_torch.attention.grouping import ReadCosts
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.step import NewTokens, StepTokens
from vlmkit_torch.devices.uploads import Uploads


@dataclass(slots=True)
class VisibleRange:
    """The range of the slots that each query sees, among those that it reads.

    Attributes:
        start: ``[queries]`` first visible slot, counted in what is read; None if all queries see
            the first one.
        stop: ``[queries]`` one past the last.
        width: slots that each query reads.
        dense: ``[queries, width]`` bool, if a range has holes.
    """

    start: torch.Tensor | None
    stop: torch.Tensor
    width: int
    dense: torch.Tensor | None = None

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Return ``[queries, width]``: zero where visible and minus infinity elsewhere."""
        column = torch.arange(self.width, device=self.stop.device)
        is_hidden = column >= self.stop[:, None]
        if self.start is not None:
            is_hidden |= column < self.start[:, None]
        if self.dense is not None:
            is_hidden |= ~self.dense
        return torch.zeros(is_hidden.shape, dtype=dtype, device=is_hidden.device).masked_fill_(
            is_hidden, -torch.inf
        )


@dataclass(slots=True)
class KeyRange:
    """The keys that some rows of a step read.

    Attributes:
        rows: the queries in the flat step, half-open.
        parts: cache slots, piece by piece. A slice stands for adjacent slots, which are read
            without a copy. For a batch of sequences, the slots of each sequence in turn.
        visible: the slots that each query sees; None means all of them.
        is_start: the queries are the first tokens of a sequence and attend causally.
        is_aligned: the queries are the last of the slots, and each sees all slots up to itself.
    """

    rows: tuple[int, int]
    parts: tuple[torch.Tensor | slice, ...]
    visible: VisibleRange | None = None
    is_start: bool = False
    is_aligned: bool = False
    _mask: torch.Tensor | None = field(default=None, repr=False)

    @property
    def num_slots(self) -> int:
        """Cache slots of all parts."""
        return sum(
            part.stop - part.start if isinstance(part, slice) else len(part) for part in self.parts
        )

    def mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the additive mask ``[queries, width]``, computed once; None masks nothing."""
        if self._mask is None and self.visible is not None:
            self._mask = self.visible.mask(dtype)
        return self._mask


class KeyRanges(NamedTuple):
    """What a step reads in layers of one kind: decodes in batches, then chunk by chunk."""

    decodes: list[KeyRange]
    chunks: list[KeyRange]


def key_ranges(step: StepTokens, kind: LayerKind, costs: ReadCosts, uploads: Uploads) -> KeyRanges:
    """Return what layers of a kind read in a step; the caller sends ``uploads``."""
    if step.has_fixed_shapes:
        return KeyRanges(fixed_ranges(step, kind, costs, uploads), [])
    decodes = step.sequences[: step.num_decodes]
    return KeyRanges(
        decode_ranges(kind, decodes, costs, step.zero_slot, uploads),
        chunk_ranges(step, kind, uploads),
    )


def chunk_ranges(step: StepTokens, kind: LayerKind, uploads: Uploads) -> list[KeyRange]:
    """Return what the chunks of a step read; the caller sends ``uploads``."""
    chunks = step.sequences[step.num_decodes :]
    rows = accumulate((chunk.num_tokens for chunk in chunks), initial=step.num_decodes)
    return [chunk_range(kind, row, own, uploads) for row, own in zip(rows, chunks, strict=False)]


def decode_ranges(
    kind: LayerKind, sources: Seq[NewTokens], costs: ReadCosts, zero_slot: int, uploads: Uploads
) -> list[KeyRange]:
    """Return what sequences with one new token each read, in batches of similar width."""
    read = [source.slots[kind.first_visible(source.first) :] for source in sources]
    ranges = []
    for start, stop in costs.batches([len(slots) for slots in read]):
        if stop - start == 1:
            ranges.append(KeyRange((start, stop), tuple(_parts(read[start], costs, uploads))))
            continue
        widths = np.array([len(slots) for slots in read[start:stop]])
        table = _table(read[start:stop], int(widths.max()), zero_slot)
        visible = None
        if widths.min() < widths.max():
            visible = VisibleRange(None, uploads.add(widths), int(widths.max()))
        ranges.append(KeyRange((start, stop), (uploads.add(table.reshape(-1)),), visible))
    return ranges


def fixed_ranges(
    step: StepTokens, kind: LayerKind, costs: ReadCosts, uploads: Uploads
) -> list[KeyRange]:
    """Return what decodes read whose tables have a fixed width, in batches of fixed size."""
    width = min(each for each in (step.table_tokens, kind.window, kind.section) if each is not None)
    read = [each.slots[kind.first_visible(each.first) :] for each in step.sequences]
    table = _table(read, width, step.zero_slot)
    stops = np.array([len(slots) for slots in read])
    ranges, size = [], costs.batch_rows(width)
    for start in range(0, len(read), size):
        stop = min(start + size, len(read))
        visible = VisibleRange(None, uploads.add(stops[start:stop]), width)
        part = uploads.add(table[start:stop].reshape(-1))
        ranges.append(KeyRange((start, stop), (part,), visible))
    return ranges


def _table(read: Seq[np.ndarray], width: int, zero_slot: int) -> np.ndarray:
    """Return the slots of each row, padded to ``[rows, width]`` with the slot of zeros."""
    table = np.full((len(read), width), zero_slot)
    for row, slots in zip(table, read, strict=True):
        row[: len(slots)] = slots
    return table


def chunk_range(kind: LayerKind, row: int, source: NewTokens, uploads: Uploads) -> KeyRange:
    """Return what a chunk reads whose first token is row ``row`` of the flat step."""
    seen = source.visible(kind)
    start, stop = seen.start, seen.stop
    skipped = int(start.min())
    slots = source.slots[skipped:]
    dense = None if seen.dense is None else seen.dense[:, skipped:]
    visible = None
    if dense is not None or start.max() > skipped or stop.min() < len(source.slots):
        first, last = uploads.add(start - skipped), uploads.add(stop - skipped)
        visible = VisibleRange(first, last, len(slots), dense)
    is_run = bool((np.diff(slots) == 1).all())
    part = slice(int(slots[0]), int(slots[-1]) + 1) if is_run else uploads.add(slots)
    is_aligned = not source.views and start.max() == skipped
    is_start = is_aligned and not source.first and not skipped
    rows = (row, row + source.num_tokens)
    return KeyRange(rows, (part,), visible, is_start, bool(is_aligned))


def _parts(slots: np.ndarray, costs: ReadCosts, uploads: Uploads) -> Iterator[torch.Tensor | slice]:
    """Yield one sequence's slots in any order: slices for long runs, the rest gathered."""
    starts, stops = _runs(slots)
    if len(starts) == 1 and costs.reads_in_place:
        yield slice(int(starts[0]), int(stops[0]))
        return
    if not costs.may_split:
        yield uploads.add(slots)
        return
    size = costs.piece_tokens
    is_long = 2 * (stops - starts) >= costs.call_tokens  # a copy reads, writes and reads again
    for start, stop in zip(starts[is_long].tolist(), stops[is_long].tolist(), strict=True):
        length = stop - start if costs.reads_in_place else size
        yield from (slice(i, min(i + length, stop)) for i in range(start, stop, length))
    short = zip(starts[~is_long], stops[~is_long], strict=True)
    if rest := [np.arange(start, stop) for start, stop in short]:
        gathered = np.concatenate(rest)
        yield from (uploads.add(gathered[i : i + size]) for i in range(0, len(gathered), size))


def _runs(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and stops of the runs of adjacent slots, whatever the order of the slots."""
    breaks = np.flatnonzero(np.diff(slots) != 1)
    if not len(breaks):  # as in most decodes
        return slots[:1], slots[-1:] + 1
    starts = slots[np.concatenate([[0], breaks + 1])]
    stops = slots[np.concatenate([breaks, [-1]])] + 1
    order = starts.argsort()
    starts, stops = starts[order], stops[order]
    is_apart = starts[1:] != stops[:-1]
    return starts[np.concatenate([[True], is_apart])], stops[np.concatenate([is_apart, [True]])]
