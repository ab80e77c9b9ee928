"""One forward pass for cross-attention layers: which rows attend to which images.

Nothing is masked. Rows that attend to the same images are computed together, whatever their
sequences, and rows that attend to none are left out. The family's own code computes keys and values
of new images; this module passes them on to the cache.
"""

from collections.abc import Iterator, Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch

from vlmkit.errors import EngineError
from vlmkit.interfaces.view import SequenceView
from vlmkit_torch.cross_attention.image_cache import CachedImage, ImageCache
from vlmkit_torch.cross_attention.spec import STATES, AttendingSpan, runs
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.model.features import to_tensor


class StepChunk(NamedTuple):
    """Tokens ``[start, stop)`` of a sequence, and the spans of its prompt's images."""

    sequence: SequenceView
    spans: tuple[AttendingSpan, ...]
    start: int
    stop: int

    def runs(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yield runs of the tokens, counted from the first, and the images of each run."""
        for start, stop, images in runs(self.spans, self.start, self.stop):
            yield start - self.start, stop - self.start, images


class RowGroup(NamedTuple):
    """Rows of a step that attend to the same images."""

    rows: slice | torch.Tensor
    images: tuple[CachedImage, ...]

    def keys_and_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a layer reads, ``[1, kv_heads, rows, head]`` each."""
        stored = [image.layers[layer] for image in self.images]
        if len(stored) == 1:
            return stored[0][0][None], stored[0][1][None]
        keys, values = (torch.cat(parts, 1)[None] for parts in zip(*stored, strict=True))
        return keys, values


class CrossAttentionStep:
    """One forward pass in which at least one token attends to an image.

    Args:
        groups: rows by the images that they attend to.
        new: images whose keys and values this pass computes, each with its encoder rows
            ``[rows, hidden]``.
        attends: ``[tokens]`` one if a token attends to an image, else zero.
        no_image: ``[1, hidden]`` the encoder rows to pass on if no image is new.
    """

    def __init__(
        self,
        groups: Seq[RowGroup],
        new: dict[CachedImage, torch.Tensor],
        attends: torch.Tensor,
        no_image: torch.Tensor,
    ) -> None:
        self.groups = groups
        self._new = new
        self._attends = attends
        self._no_image = no_image

    def arguments(self) -> dict[str, torch.Tensor]:
        """Return the decoder's arguments; without them it skips its cross-attention layers."""
        states = torch.cat([*self._new.values()] or [self._no_image])
        return {
            "cross_attention_states": states[None],
            "full_text_row_masked_out_mask": self._attends.to(states.dtype)[None, None, :, None],
        }

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store a layer's keys and values ``[kv_heads, rows, head]`` of new images."""
        start = 0
        for image in self._new:
            rows = slice(start, start + image.num_rows)
            start = rows.stop
            image.layers[layer] = key[:, rows].contiguous(), value[:, rows].contiguous()

    def finish(self) -> None:
        """Mark the new images as complete, so that other sequences may use them."""
        for image in self._new:
            image.is_complete = True


def lay_out(
    chunks: Seq[StepChunk], cache: ImageCache, no_image: torch.Tensor, uploads: Uploads
) -> CrossAttentionStep | None:
    """Lay out a pass; the caller sends ``uploads``. None if no token attends to an image.

    Args:
        chunks: all tokens of the step, in order.
        cache: holds their images.
        no_image: ``[1, hidden]`` zeros, of the decoder's precision.
        uploads: carries index arrays to the device.

    Raises:
        EngineError: an image is new, and its features are missing.
    """
    rows_of: dict[tuple[CachedImage, ...], list[np.ndarray]] = {}
    new: dict[CachedImage, torch.Tensor] = {}
    attends = np.zeros(sum(chunk.stop - chunk.start for chunk in chunks), dtype=np.int64)
    row = 0
    for chunk in chunks:
        for start, stop, indices in chunk.runs():
            if not indices:
                continue
            images = tuple(cache.image(chunk.sequence, index) for index in indices)
            rows_of.setdefault(images, []).append(np.arange(row + start, row + stop))
            attends[row + start : row + stop] = 1
            for index, image in zip(indices, images, strict=True):
                if not image.is_complete and image not in new:
                    new[image] = _states(chunk.sequence, index, image, like=no_image)
        row += chunk.stop - chunk.start
    if not rows_of:
        return None
    groups = [
        RowGroup(_row_index(np.concatenate(rows), uploads), images)
        for images, rows in rows_of.items()
    ]
    return CrossAttentionStep(groups, new, uploads.add(attends), no_image)


def _states(
    sequence: SequenceView, index: int, image: CachedImage, like: torch.Tensor
) -> torch.Tensor:
    """Return the encoder rows ``[rows, hidden]`` that keys and values are computed from."""
    features = sequence.features.get(index)
    rows = None if features is None else features.extra.get(STATES)
    if rows is None:
        raise EngineError(f"features of image {index} of a prompt are not there")
    if rows.shape != (image.num_rows, like.shape[-1]):
        raise EngineError(
            f"image features do not fit the prompt: their shape is {list(rows.shape)}, and the "
            f"decoder expects {[image.num_rows, like.shape[-1]]}"
        )
    return to_tensor(rows, like.device, like.dtype)


def _row_index(rows: np.ndarray, uploads: Uploads) -> slice | torch.Tensor:
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return uploads.add(rows)


def probe_step(image: CachedImage, no_image: torch.Tensor) -> CrossAttentionStep:
    """Return a pass of one token that attends to an image of one row."""
    attends = torch.ones(1, dtype=torch.int64, device=no_image.device)
    return CrossAttentionStep(
        [RowGroup(slice(0, 1), (image,))], {image: no_image}, attends, no_image
    )
