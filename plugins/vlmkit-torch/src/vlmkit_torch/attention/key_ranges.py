"""Which cache slots the queries of a step read in a layer of some kind, and what of them they see.

Laid out with numpy, on the host; only index arrays go to the device. Holds no keys or values
(``kv_cache`` does) and computes no attention (``paged`` does).
"""

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from vlmkit_torch.attention.grouping import Costs
from vlmkit_torch.attention.layer_kind import LayerKind, Visibility
from vlmkit_torch.devices.uploads import Uploads


class Source(NamedTuple):
    """New tokens of one sequence.

    Attributes:
        first: the first one's index in its sequence.
        slots: ``[stop]`` cache slots of everything up to the last one.
        views: the family's own masks by kind of layer, cut to these tokens.
    """

    first: int
    slots: np.ndarray
    views: dict[str, Visibility] = {}  # noqa: RUF012 - never changed

    @property
    def num_tokens(self) -> int:
        """Number of new tokens."""
        return len(self.slots) - self.first


@dataclass(slots=True)
class Seen:
    """What each of some queries sees of the slots that they read: a range of them.

    Attributes:
        start: ``[queries]`` first one, counted in what is read; None where all see the first.
        stop: ``[queries]`` one past the last.
        width: slots that each query reads.
        dense: ``[queries, width]`` bool, where a range has holes.
    """

    start: torch.Tensor | None
    stop: torch.Tensor
    width: int
    dense: torch.Tensor | None = None

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Return ``[queries, width]``: zero where seen and minus infinity elsewhere."""
        place = torch.arange(self.width, device=self.stop.device)
        is_hidden = place >= self.stop[:, None]
        if self.start is not None:
            is_hidden |= place < self.start[:, None]
        if self.dense is not None:
            is_hidden |= ~self.dense
        return torch.zeros(is_hidden.shape, dtype=dtype, device=is_hidden.device).masked_fill_(
            is_hidden, -torch.inf
        )


@dataclass(slots=True)
class Reach:
    """What the queries of some rows read.

    Attributes:
        rows: where they stand in the flat step, half-open.
        parts: cache slots, piece by piece: a slice where they are neighbours, which are read
            without a copy. Of a batch of sequences, those of each in turn.
        seen: what of them each query sees; None is everything.
        is_start: these are the first tokens of a sequence, and each sees all before it.
    """

    rows: tuple[int, int]
    parts: tuple[torch.Tensor | slice, ...]
    seen: Seen | None = None
    is_start: bool = False
    _mask: torch.Tensor | None = field(default=None, repr=False)

    def mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the additive mask ``[queries, width]``, made once; None masks nothing."""
        if self._mask is None and self.seen is not None:
            self._mask = self.seen.mask(dtype)
        return self._mask


def of_decodes(
    kind: LayerKind, sources: Seq[Source], costs: Costs, zero_slot: int, uploads: Uploads
) -> list[Reach]:
    """Return what sequences read of which one token is new, in batches of like width."""
    read = [source.slots[kind.first_visible(source.first) :] for source in sources]
    reaches = []
    for start, stop in costs.batches([len(slots) for slots in read]):
        if stop - start == 1:
            reaches.append(Reach((start, stop), tuple(_parts(read[start], costs, uploads))))
            continue
        widths = np.array([len(slots) for slots in read[start:stop]])
        table = np.full((stop - start, widths.max()), zero_slot)
        for row, slots in zip(table, read[start:stop], strict=True):
            row[: len(slots)] = slots
        seen = None
        if widths.min() < widths.max():
            seen = Seen(None, uploads.add(widths), int(widths.max()))
        reaches.append(Reach((start, stop), (uploads.add(table.reshape(-1)),), seen))
    return reaches


def of_chunk(kind: LayerKind, row: int, source: Source, uploads: Uploads) -> Reach:
    """Return what new tokens read that stand at ``row`` in the flat step, in their order."""
    index = np.arange(source.first, len(source.slots))
    start, stop = kind.first_visible_each(index), index + 1
    view = source.views.get(kind.name) or source.views.get("full_attention")
    if view is not None:
        start = view.start if kind.name in source.views else np.maximum(start, view.start)
        stop = view.stop
    skipped = int(start.min())
    slots = source.slots[skipped:]
    dense = None if view is None or view.dense is None else view.dense[:, skipped:]
    seen = None
    if dense is not None or start.max() > skipped or stop.min() < len(source.slots):
        first, last = uploads.add(start - skipped), uploads.add(stop - skipped)
        seen = Seen(first, last, len(slots), dense)
    is_run = bool((np.diff(slots) == 1).all())
    part = slice(int(slots[0]), int(slots[-1]) + 1) if is_run else uploads.add(slots)
    is_start = not source.first and not source.views and not start.any()
    return Reach((row, row + source.num_tokens), (part,), seen, is_start)


def _parts(slots: np.ndarray, costs: Costs, uploads: Uploads) -> Iterator[torch.Tensor | slice]:
    """Yield one sequence's slots in any order: in place where many are neighbours."""
    starts, stops = _runs(slots)
    if len(starts) == 1:
        yield slice(int(starts[0]), int(stops[0]))
        return
    if not costs.may_split:
        yield uploads.add(slots)
        return
    is_long = 2 * (stops - starts) >= costs.call_tokens  # to copy is to read, write and read again
    yield from map(slice, starts[is_long].tolist(), stops[is_long].tolist())
    short = zip(starts[~is_long], stops[~is_long], strict=True)
    if rest := [np.arange(start, stop) for start, stop in short]:
        size = 2 * costs.call_tokens  # small enough for the next reader to find it in a CPU's cache
        gathered = np.concatenate(rest)
        yield from (uploads.add(gathered[i : i + size]) for i in range(0, len(gathered), size))


def _runs(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and stops of the ranges that slots make up, whatever their order."""
    breaks = np.flatnonzero(np.diff(slots) != 1)
    starts = slots[np.concatenate([[0], breaks + 1])]
    stops = slots[np.concatenate([breaks, [-1]])] + 1
    order = starts.argsort()
    starts, stops = starts[order], stops[order]
    is_apart = starts[1:] != stops[:-1]
    return starts[np.concatenate([[True], is_apart])], stops[np.concatenate([is_apart, [True]])]
