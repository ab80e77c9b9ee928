"""A prompt's inputs for a decoder: places of image rows, positions, and visibility.

Contains no rules of families; those are in :mod:`vlmkit_onnx.prompts.families`. Computes nothing
of the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import EngineError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt, Span
from vlmkit_onnx.prompts.families import Family

DEEPSTACK = "deepstack."  # extra rows of the n-th level

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PromptInputs:
    """One prompt, read.

    Attributes:
        positions: ``[axes, seq]``; None if token ``i`` has position ``i``.
        offset: token ``i`` after the prompt has position ``i + offset``.
        image: ``[seq]`` the image whose row a token takes; -1 for text.
        row: ``[seq]`` the row of that image.
        block: ``[seq]`` the block of a token; tokens of one block see each other both ways; -1
            for none.
        sees_past_window: whether tokens of a block see each other beyond a layer's window.
        sees_near_only: whether they see each other in layers with a window only.
    """

    positions: Integers | None
    offset: int
    image: NDArray[np.int32]
    row: NDArray[np.int32]
    block: NDArray[np.int32]
    sees_past_window: bool = False
    sees_near_only: bool = False

    def spans(self) -> tuple[Span, ...]:
        """Return the token ranges that see each other both ways."""
        edges = np.flatnonzero(np.diff(self.block, prepend=-1, append=-1))
        return tuple(
            Span(int(start), int(stop))
            for start, stop in pairwise(edges)
            if self.block[start] >= 0 and stop - start > 1
        )

    def positions_of(self, start: int, stop: int, num_axes: int) -> Integers:
        """Return the positions of tokens ``[start, stop)``, ``[axes, 1, tokens]``."""
        num_prompt = len(self.image)
        index = np.arange(start, stop)
        positions = np.tile(np.where(index < num_prompt, index, index + self.offset), (num_axes, 1))
        if self.positions is not None and start < num_prompt:
            known = min(stop, num_prompt)
            positions[:, : known - start] = self.positions[:, start:known]
        return positions[:, None]


def read_prompt(prompt: Prompt, family: Family) -> PromptInputs:
    """Return a prompt's inputs by the rules of its family.

    Raises:
        EngineError: an image has another number of placeholders than rows.
    """
    ids = np.array(prompt.token_ids, np.int64)
    image = np.full(len(ids), -1, np.int32)
    row = np.zeros(len(ids), np.int32)
    for number, slot in enumerate(prompt.media):
        places = slot.start + np.flatnonzero(ids[slot.start : slot.stop] == family.image_token_id)
        if len(places) != slot.num_features:
            raise EngineError(
                f"image {number} has {len(places)} places in its prompt, and its encoder gives "
                f"{slot.num_features} rows"
            )
        image[places], row[places] = number, np.arange(len(places))
    positions = family.positions(prompt)
    return PromptInputs(
        positions.values,
        positions.offset,
        image,
        row,
        _blocks(image >= 0, family),
        sees_past_window=family.visibility in ("prefix", "wide_image_blocks"),
        sees_near_only=family.visibility == "near_image_blocks",
    )


def merge(
    inputs: PromptInputs,
    rows: Floats,
    start: int,
    features: Mapping[int, MediaFeatures],
    deepstack: Floats | None,
) -> None:
    """Write image features over the rows of their placeholders.

    Args:
        inputs: of the prompt.
        rows: ``[tokens, hidden]`` of the tokens from ``start`` on.
        start: first token.
        features: by image.
        deepstack: ``[levels, tokens, hidden]``, zeros; None where the decoder takes none.

    Raises:
        EngineError: features are absent, or their shape does not fit the decoder.
    """
    image = inputs.image[start : start + len(rows)]
    for number in np.unique(image[image >= 0]).tolist():
        if number not in features:
            raise EngineError(f"features of image {number} of a prompt are not there")
        places = np.flatnonzero(image == number)
        wanted = inputs.row[start + places]
        found = features[number]
        rows[places] = _rows(found.embeddings, rows.shape[1])[wanted]
        if deepstack is not None:
            for level in range(len(deepstack)):
                name = f"{DEEPSTACK}{level}"
                if name not in found.extra:
                    raise EngineError(f"features of image {number} have no {name!r}")
                deepstack[level, places] = _rows(found.extra[name], rows.shape[1])[wanted]


def visible(
    inputs: PromptInputs, start: int, stop: int, window: int | None
) -> tuple[Floats, Floats]:
    """Return the additive masks of a chunk.

    Returns:
        Two arrays ``[1, 1, stop - start, stop]`` of 0 and minus infinity, for layers without a
        window and for layers with one.
    """
    full, windowed = visible_pairs(inputs, start, stop, window)
    bias = _bias(full)
    return bias, bias if windowed is full else _bias(windowed)


def visible_pairs(
    inputs: PromptInputs, start: int, stop: int, window: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the masks of a chunk as booleans ``[stop - start, stop]``; see :func:`visible`."""
    query, key = np.arange(start, stop)[:, None], np.arange(stop)[None]
    block = np.full(stop, -1, np.int32)
    known = min(stop, len(inputs.block))
    block[:known] = inputs.block[:known]
    is_same = (block[start:, None] == block[None]) & (block[None] >= 0)
    causal = key <= query
    both_ways = causal | is_same
    full = causal if inputs.sees_near_only else both_ways
    if window is None:
        return full, full
    windowed = both_ways & (key > query - window)
    return full, (windowed | is_same if inputs.sees_past_window else windowed)


def visible_to_last(starts: NDArray[np.int32], window: int | None) -> tuple[Floats, Floats]:
    """Return the additive masks of one new token in each row, ``[rows, 1, 1, longest + 1]``."""
    query, key = starts[:, None].astype(np.int64), np.arange(starts.max() + 1)[None]
    causal = key <= query
    windowed = causal if window is None else causal & (key > query - window)
    return _bias(causal[:, None]), _bias(windowed[:, None])


def _bias(is_visible: NDArray[np.bool_]) -> Floats:
    shape = is_visible.shape if is_visible.ndim == 3 else (1, *is_visible.shape)
    bias = np.where(is_visible, np.float32(0), np.float32(-np.inf))
    return np.ascontiguousarray(bias.reshape(shape[0], 1, *shape[1:]))


def _blocks(is_image: NDArray[np.bool_], family: Family) -> NDArray[np.int32]:
    """Return the block of each token, within which tokens see each other both ways; -1 for none."""
    if family.visibility == "causal" or not is_image.any():
        return np.full(len(is_image), -1, np.int32)
    if family.visibility == "prefix":
        return np.zeros(len(is_image), np.int32)
    begins = is_image & ~np.concatenate([[False], is_image[:-1]])
    return np.where(is_image, np.cumsum(begins) - 1, -1).astype(np.int32)


def _rows(array: Any, width: int) -> Floats:
    """Return features of any library as an array on the host, ``[tokens, width]``."""
    try:
        rows = np.from_dlpack(array)
    except (TypeError, BufferError, RuntimeError, ValueError) as error:
        raise EngineError(
            "image features are in a precision or on a device that this engine cannot read",
            hint='set media_encoder.dtype = "float32" and media_encoder.device = "cpu"',
        ) from error
    if rows.ndim != 2 or rows.shape[1] != width:
        raise EngineError(
            f"image features have shape {rows.shape}, and the decoder takes rows of {width}"
        )
    return np.asarray(rows, np.float32)
