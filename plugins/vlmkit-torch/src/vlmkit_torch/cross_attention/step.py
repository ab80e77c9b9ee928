"""What one forward pass looks like to layers that look at pictures: which rows look at which.

Nothing is masked: rows that look at the same pictures, of whatever sequence, attend together, and
rows that look at none are left out. The family's own code makes keys and values of the pictures
that are new; they pass through here on their way to the cache.
"""

from collections.abc import Iterator, Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch

from vlmkit.errors import EngineError
from vlmkit.interfaces.view import SequenceView
from vlmkit_torch.cross_attention.family import STATES, Sight, runs
from vlmkit_torch.cross_attention.image_cache import Picture, PictureCache
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.model.features import to_tensor


class Gaze(NamedTuple):
    """Tokens ``[start, stop)`` of a sequence, and who of it looks at what."""

    sequence: SequenceView
    sights: tuple[Sight, ...]
    start: int
    stop: int

    def looks(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yield runs of the tokens, counted from the first, and what those of each look at."""
        for start, stop, seen in runs(self.sights, self.start, self.stop):
            yield start - self.start, stop - self.start, seen


class Group(NamedTuple):
    """Rows of a step that look at the same pictures."""

    rows: slice | torch.Tensor
    pictures: tuple[Picture, ...]

    def keys_and_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a layer reads, ``[1, kv_heads, rows, head]`` each."""
        kept = [picture.layers[layer] for picture in self.pictures]
        if len(kept) == 1:
            return kept[0][0][None], kept[0][1][None]
        keys, values = (torch.cat(parts, 1)[None] for parts in zip(*kept, strict=True))
        return keys, values


class CrossingStep:
    """One forward pass in which some token looks at a picture.

    Args:
        groups: who looks at what.
        new: pictures whose keys and values this pass makes, and of what: ``[rows, hidden]``.
        seen: ``[tokens]`` one where a token looks at a picture, else zero.
        nothing: ``[1, hidden]`` what is handed over where no picture is new.
    """

    def __init__(
        self,
        groups: Seq[Group],
        new: dict[Picture, torch.Tensor],
        seen: torch.Tensor,
        nothing: torch.Tensor,
    ) -> None:
        self.groups = groups
        self._new = new
        self._seen = seen
        self._nothing = nothing

    def arguments(self) -> dict[str, torch.Tensor]:
        """Return what a decoder needs, or else it leaves out its layers that look at pictures."""
        states = torch.cat([*self._new.values()] or [self._nothing])
        return {
            "cross_attention_states": states[None],
            "full_text_row_masked_out_mask": self._seen.to(states.dtype)[None, None, :, None],
        }

    def keep(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keep a layer's keys and values ``[kv_heads, rows, head]`` of new pictures."""
        start = 0
        for picture in self._new:
            rows = slice(start, start + picture.num_rows)
            start = rows.stop
            picture.layers[layer] = key[:, rows].contiguous(), value[:, rows].contiguous()

    def finish(self) -> None:
        """Let what was computed be shared: all layers have theirs."""
        for picture in self._new:
            picture.is_whole = True


def lay_out(
    gazes: Seq[Gaze], cache: PictureCache, nothing: torch.Tensor, uploads: Uploads
) -> CrossingStep | None:
    """Lay a pass out; the caller sends it. None where no token looks at a picture.

    Args:
        gazes: of all tokens, in their order.
        cache: has their pictures.
        nothing: ``[1, hidden]`` zeros, of the decoder's precision.
        uploads: take what is laid out to the device.

    Raises:
        EngineError: a picture is new, and its features are not there.
    """
    rows_of: dict[tuple[Picture, ...], list[np.ndarray]] = {}
    new: dict[Picture, torch.Tensor] = {}
    seen = np.zeros(sum(gaze.stop - gaze.start for gaze in gazes), dtype=np.int64)
    row = 0
    for gaze in gazes:
        for start, stop, indices in gaze.looks():
            if not indices:
                continue
            pictures = tuple(cache.of(gaze.sequence, index) for index in indices)
            rows_of.setdefault(pictures, []).append(np.arange(row + start, row + stop))
            seen[row + start : row + stop] = 1
            for index, picture in zip(indices, pictures, strict=True):
                if not picture.is_whole and picture not in new:
                    new[picture] = _states(gaze.sequence, index, picture, like=nothing)
        row += gaze.stop - gaze.start
    if not rows_of:
        return None
    groups = [Group(_place(np.concatenate(r), uploads), seen) for seen, r in rows_of.items()]
    return CrossingStep(groups, new, uploads.add(seen), nothing)


def _states(
    sequence: SequenceView, index: int, picture: Picture, like: torch.Tensor
) -> torch.Tensor:
    """Return what a picture's keys and values are made of, ``[rows, hidden]``."""
    features = sequence.features.get(index)
    rows = None if features is None else features.extra.get(STATES)
    if rows is None:
        raise EngineError(f"features of image {index} of a prompt are not there")
    if rows.shape != (picture.num_rows, like.shape[-1]):
        raise EngineError(
            f"image features do not fit the prompt: {list(rows.shape)} came, and the decoder looks "
            f"at {[picture.num_rows, like.shape[-1]]}"
        )
    return to_tensor(rows, like.device, like.dtype)


def _place(rows: np.ndarray, uploads: Uploads) -> slice | torch.Tensor:
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return uploads.add(rows)


def trial(picture: Picture, nothing: torch.Tensor) -> CrossingStep:
    """Return the pass of one token that looks at a picture of one row."""
    seen = torch.ones(1, dtype=torch.int64, device=nothing.device)
    return CrossingStep([Group(slice(0, 1), (picture,))], {picture: nothing}, seen, nothing)
