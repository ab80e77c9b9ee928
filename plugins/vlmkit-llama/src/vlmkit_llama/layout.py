"""Which tokens an image becomes, and what an engine knows of the images of a prompt.

Values only. The library lays images out; a tokenizer puts layouts into prompts, as arrays that may
go to another process.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt, Span
from vlmkit_llama.context import AXES, Floats, Integers

ROW = -1
"""Stands for a row of features among the tokens of a layout."""

PIXELS, ROWS, POSITIONS, SPANS = "pixels", "rows", "positions", "spans"
"""The names of a slot's inputs."""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The tokens of an image.

    Attributes:
        token_ids: ``[tokens]``, with ``ROW`` for each row of features.
        positions: ``[tokens + 1, 3]``: time, row and column of each token and of the token that
            follows the image, counted from the first one.
        spans: ``[spans, 2]``: tokens that must be computed together.
    """

    token_ids: Integers
    positions: Integers
    spans: Integers

    @property
    def num_features(self) -> int:
        """The rows of features."""
        return int((self.token_ids == ROW).sum())

    def between(self, before: Seq[int], after: Seq[int]) -> "ImageLayout":
        """Return a layout without the markers at its ends that the prompt has beside it."""
        rows = np.flatnonzero(self.token_ids == ROW)
        head = self.token_ids[: rows[0]].tolist()
        tail = self.token_ids[rows[-1] + 1 :].tolist()
        begin = len(head) if head and list(before[-len(head) :]) == head else 0
        drop = len(tail) if tail and list(after[: len(tail)]) == tail else 0
        stop = len(self.token_ids) - drop
        positions = self.positions[begin : stop + 1] - np.int32(begin)
        return ImageLayout(self.token_ids[begin:stop], positions, self.spans - np.int32(begin))

    def inputs(self, pixels: NDArray[np.uint8]) -> dict[str, Any]:
        """Return the inputs of a slot."""
        spans = {SPANS: self.spans} if len(self.spans) else {}
        is_row = (self.token_ids == ROW).astype(np.uint8)
        return {PIXELS: pixels, ROWS: is_row, POSITIONS: self.positions, **spans}


class Run(NamedTuple):
    """Tokens ``[start, stop)`` of a prompt that rows of features replace, side by side.

    Attributes:
        start: the first token.
        stop: one past the last.
        slot: the index of the image.
        first_row: the row of the first token in the features of the image.
        is_whole: whether the tokens attend to each other in both directions.
    """

    start: int
    stop: int
    slot: int
    first_row: int
    is_whole: bool


@dataclass(frozen=True)
class PromptImages:
    """What an engine knows of the images of a prompt.

    Attributes:
        runs: in order.
        positions: ``[tokens + 1, 3]``, of each token and of the one that follows the prompt; None
            if the position of a token is its number.
    """

    runs: tuple[Run, ...] = ()
    positions: Integers | None = None

    def position(self, index: int) -> int:
        """Return the position of a token in time, which is that of its cell."""
        if self.positions is None:
            return index
        last = len(self.positions) - 1
        return int(self.positions[min(index, last), 0]) + max(0, index - last)

    def on_axes(self, start: int, stop: int) -> Integers:
        """Return the positions of tokens of the prompt on each axis."""
        if self.positions is None:
            return line(start, stop - start)
        return self.positions[start:stop]

    def begin(self, index: int) -> int:
        """Return the first token that must be computed again so that ``index`` is.

        All tokens of an image have one position in time, so cells of an image are removed together.
        """
        if self.positions is None:
            return index
        inside = (run.start for run in self.runs if run.start < index < run.stop)
        return next(inside, index)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, Run | None]]:
        """Yield ``[start, stop)`` in order, cut where runs begin and end; None for text."""
        first = bisect_right(self.runs, start, key=lambda run: run.stop)
        for run in self.runs[first:]:
            if run.start >= stop:
                break
            if start < run.start:
                yield start, run.start, None
                start = run.start
            yield start, min(stop, run.stop), run
            start = min(stop, run.stop)
        if start < stop:
            yield start, stop, None


TEXT = PromptImages()
"""What an engine knows of a prompt without images."""


def read_images(prompt: Prompt, *, has_axes: bool) -> tuple[PromptImages, tuple[Span, ...]]:
    """Return what an engine needs of a prompt with images, and the spans of it.

    Args:
        prompt: the prompt.
        has_axes: whether positions have several axes.

    Raises:
        RequestError: another tokenizer prepared an image.
    """
    runs: list[Run] = []
    positions = [line(0, 0)]
    end = position = 0
    for index, slot in enumerate(prompt.media):
        if slot.kind != "image" or not {ROWS, POSITIONS} <= slot.inputs.keys():
            raise RequestError(
                "the engine llama takes images that its own tokenizer has prepared",
                hint='leave tokenizer.use out, or set it to "llama"',
            )
        runs += _runs(slot.inputs, slot.start, index)
        if has_axes:
            positions.append(line(position, slot.start - end))
            own = np.asarray(slot.inputs[POSITIONS]) + np.int32(position + slot.start - end)
            positions.append(own[:-1])
            end, position = slot.stop, int(own[-1, 0])
    positions.append(line(position, len(prompt) - end + 1))
    spans = tuple(Span(run.start, run.stop) for run in runs if run.is_whole)
    return PromptImages(tuple(runs), np.concatenate(positions) if has_axes else None), spans


def _runs(inputs: Mapping[str, Any], start: int, index: int) -> Iterator[Run]:
    is_row = np.concatenate(([0], np.asarray(inputs[ROWS], np.int8), [0]))
    steps = np.flatnonzero(np.diff(is_row))
    spans = np.asarray(inputs[SPANS]).tolist() if SPANS in inputs else []
    ends = dict(spans)
    first_row = 0
    for begin, end in steps.reshape(-1, 2).tolist():
        yield Run(start + begin, start + end, index, first_row, ends.get(begin) == end)
        first_row += end - begin


def line(start: int, num: int) -> Integers:
    """Return the positions of text, which are equal on all axes."""
    return np.repeat(np.arange(start, start + num, dtype=np.int32)[:, None], AXES, axis=1)


def rows_of(run: Run, embeddings: Floats, start: int, stop: int) -> Floats:
    """Return the features of tokens ``[start, stop)`` of a run."""
    first = run.first_row + start - run.start
    return embeddings[first : first + stop - start]
