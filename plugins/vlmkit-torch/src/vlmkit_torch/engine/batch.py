"""Lays out work items as one flat step: the decoder's arguments, and the layout of attention.

Selects no work items and computes nothing of the model.
"""

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from vlmkit.errors import EngineError
from vlmkit.interfaces.step import WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool
from vlmkit_torch.attention.paged import AttentionContext
from vlmkit_torch.attention.step import NewTokens, Step, step_tokens
from vlmkit_torch.cross_attention.image_cache import ImageCache
from vlmkit_torch.cross_attention.step import CrossAttentionStep, StepChunk, lay_out
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.engine.non_finite import NonFiniteTracker
from vlmkit_torch.engine.static_steps import StaticStep
from vlmkit_torch.prompts.layout import Layout
from vlmkit_torch.prompts.prompt_reader import MAX_PLAIN_AXES, Embeds, PromptReader


@dataclass(slots=True)
class PromptState:
    """What the engine stores about an admitted sequence's prompt."""

    layout: Layout
    embeds: Embeds | None = None


class Segment(NamedTuple):
    """Tokens ``[start, stop)`` of one sequence, all of its prompt or all after it."""

    sequence: SequenceView
    state: PromptState
    start: int
    stop: int
    token_ids: Seq[int]

    @property
    def is_prompt(self) -> bool:
        """Whether the tokens are the prompt's."""
        return self.start < self.sequence.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return self.stop - self.start

    @property
    def images(self) -> list[int]:
        """The images whose slots the tokens overlap, if images are merged into the embeddings."""
        if not self.is_prompt or self.state.layout.attending_spans:
            return []
        slots = enumerate(self.sequence.prompt.media)
        return [i for i, slot in slots if slot.start < self.stop and slot.stop > self.start]


class NextTokens(NamedTuple):
    """The newest tokens of sequences, which only the device knows.

    Attributes:
        ids: ``[rows]`` int64 on the device.
        rows: the row of each sequence.
    """

    ids: torch.Tensor
    rows: dict[SequenceView, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass.

    Attributes:
        arguments: returns those of the decoder; what it computes is part of the step.
        step: for attention.
        rows: ``[rows]`` flat tokens whose logits are wanted, in the order of the items.
        marks: ``[tokens]`` index of the non-finite mark of each token's sequence.
        cross_attention: for cross-attention layers; None if no token attends to an image.
    """

    arguments: Callable[[], dict[str, Any]]
    step: Step
    rows: torch.Tensor
    marks: torch.Tensor
    cross_attention: CrossAttentionStep | None = None


class Batcher:
    """Builds batches for one engine.

    Args:
        pool: the blocks of each sequence.
        reader: reads prompts.
        context: of the attention layers.
        non_finite: has a mark for each sequence.
        images: that layers attend to; None if images are merged into the embeddings.
    """

    def __init__(
        self,
        pool: BlockPool,
        reader: PromptReader,
        context: AttentionContext,
        non_finite: NonFiniteTracker,
        images: ImageCache | None = None,
    ) -> None:
        self._pool = pool
        self._reader = reader
        self._context = context
        self._non_finite = non_finite
        self._images = images
        self._block_offsets = np.arange(pool.block_tokens)

    def build(
        self,
        items: Seq[WorkItem],
        states: dict[SequenceView, PromptState],
        next_tokens: NextTokens | None = None,
    ) -> Batch:
        """Lay out the items: decodes first, then chunks.

        Args:
            items: with decodes ordered from short sequences to long ones.
            states: of their sequences.
            next_tokens: the tokens of decodes, if their sequences do not hold them.
        """
        decodes, chunks, ends = _flatten(items, states)
        segments = decodes + chunks
        for segment in segments:
            self._read_embeds(segment)
        uploads = Uploads(self._reader.device)
        step = self._step(decodes, chunks, uploads)
        on_device = [uploads.add(array) for array in self._arrays(items, segments, ends)]
        ids, positions, rows, marks = on_device
        visual = _visual_mask(segments)
        visual_mask = None if visual is None else uploads.add(visual.astype(np.int64))
        cross_attention = self._cross_attention(segments, uploads)
        sources = None if next_tokens is None else uploads.add(_sources(segments, next_tokens))
        uploads.send()
        if next_tokens is not None and sources is not None:
            ids[0] = next_tokens.ids[sources]
        inputs = self._inputs(segments, ids, visual_mask)
        more = {} if cross_attention is None else cross_attention.arguments()
        arguments = {**inputs, "position_ids": positions, **more}
        return Batch(lambda: arguments, step, rows, marks, cross_attention)

    def build_static(
        self,
        items: Seq[WorkItem],
        states: dict[SequenceView, PromptState],
        static: StaticStep,
        next_tokens: NextTokens | None = None,
    ) -> Batch:
        """Lay out decodes and rows of padding, with tensors of fixed shapes and addresses.

        Args:
            items: decodes of sequences that attend to no image, ordered from short to long ones.
            states: of their sequences.
            static: holds the tensors.
            next_tokens: their tokens, if the sequences do not hold them.
        """
        decodes, _, ends = _flatten(items, states)
        uploads, num_padding = static.uploads, static.shape.num_rows - len(decodes)
        padding = NewTokens(0, np.array([self._context.cache.padding_slot]))
        step = self._step(decodes, [], uploads, [padding] * num_padding, static.table_blocks)
        ids, positions, rows, marks = self._arrays(items, decodes, ends)
        num_wanted = len(rows)
        rows = np.pad(rows, (0, static.shape.num_rows - num_wanted))
        marks = np.pad(marks, (0, num_padding), constant_values=self._non_finite.padding)
        ids, positions = (
            np.pad(array, [*[(0, 0)] * (array.ndim - 1), (0, num_padding)])
            for array in (ids, positions)
        )
        on_device = [uploads.add(array) for array in (ids, positions, rows, marks)]
        # Steps with and without it have the same shapes.
        own = np.zeros(len(decodes), np.int64)
        sources = own if next_tokens is None else _sources(decodes, next_tokens)
        sources_on_device = uploads.add(np.pad(sources, (0, num_padding)))
        static.note_shapes()
        uploads.send()
        if next_tokens is not None:
            num = len(decodes)
            on_device[0][0, :num] = next_tokens.ids[sources_on_device[:num]]
        arguments = partial(self._plain_arguments, *on_device[:2])
        return Batch(arguments, step, on_device[2][:num_wanted], on_device[3])

    def _arrays(
        self, items: Seq[WorkItem], segments: list[Segment], ends: dict[SequenceView, int]
    ) -> list[np.ndarray]:
        """Return ids ``[1, tokens]``, positions, wanted rows and marks of tokens."""
        ids = [token_id for segment in segments for token_id in segment.token_ids]
        marks = [self._non_finite.index(segment.sequence) for segment in segments]
        rows = [
            row
            for item in items
            for row in range(ends[item.sequence] - item.num_rows, ends[item.sequence])
        ]
        return [
            np.array([ids]),
            _positions(segments),
            np.array(rows, dtype=np.int64),
            np.repeat(marks, [segment.num_tokens for segment in segments]),
        ]

    def _plain_arguments(self, ids: torch.Tensor, positions: torch.Tensor) -> dict[str, Any]:
        """Return the decoder's arguments for tokens that are no slots of images."""
        return {"input_ids": ids, "position_ids": positions, **self._reader.expert_types(ids)}

    def _cross_attention(
        self, segments: list[Segment], uploads: Uploads
    ) -> CrossAttentionStep | None:
        """Lay out which rows attend to which image; None if none do."""
        if self._images is None:
            return None
        chunks = [
            StepChunk(s.sequence, s.state.layout.attending_spans, s.start, s.stop) for s in segments
        ]
        return lay_out(chunks, self._images, self._reader.no_image, uploads)

    def _slots(self, sequence: SequenceView, stop: int) -> np.ndarray:
        """Return the cache slots of a sequence's tokens ``[0, stop)``."""
        size = self._pool.block_tokens
        blocks = np.array(self._pool.blocks(sequence)[: -(-stop // size)], dtype=np.int64)
        return (blocks[:, None] * size + self._block_offsets).reshape(-1)[:stop]

    def _step(
        self,
        decodes: list[Segment],
        chunks: list[Segment],
        uploads: Uploads,
        padding: Seq[NewTokens] = (),
        table_blocks: int = 0,
    ) -> Step:
        tokens = step_tokens(
            [*map(self._source, decodes), *padding],
            map(self._source, chunks),
            self._pool.block_tokens,
            self._context.cache.zero_slot,
            uploads,
            table_blocks,
        )
        step = Step(tokens, self._context.backend)
        step.plan(self._context.kinds, uploads)
        return step

    def _source(self, segment: Segment) -> NewTokens:
        slots = self._slots(segment.sequence, segment.stop)
        if not segment.is_prompt:
            return NewTokens(segment.start, slots)
        views = segment.state.layout.views
        own = {name: view.cut(segment.start, segment.stop) for name, view in views.items()}
        return NewTokens(segment.start, slots, own)

    def _read_embeds(self, segment: Segment) -> None:
        """Merge the features of every image of a segment into its embeddings."""
        images = segment.images
        if not images:
            return
        sequence, state = segment.sequence, segment.state
        if absent := [i for i in images if i not in sequence.features]:
            raise EngineError(f"features of image {absent[0]} of a prompt are not there")
        if state.embeds is None or not state.embeds.images.issuperset(images):
            state.embeds = self._reader.embeds(sequence.prompt, sequence.features)

    def _inputs(
        self, segments: list[Segment], ids: torch.Tensor, visual: torch.Tensor | None
    ) -> dict[str, Any]:
        """Return token ids, or embeddings and related arguments if a segment overlaps an image."""
        has_images = [bool(segment.images) for segment in segments]
        if not any(has_images):
            return {"input_ids": ids, **self._reader.expert_types(ids)}
        merged = self._merge(segments, has_images, ids)
        return merged if visual is None else {**merged, **_visual(segments, visual)}

    def _merge(
        self, segments: list[Segment], has_images: list[bool], ids: torch.Tensor
    ) -> dict[str, Any]:
        """Join the arguments of segments with images and of those without."""
        bounds = np.cumsum([0, *(s.num_tokens for s in segments)]).tolist()
        text = [slice(*bounds[i : i + 2]) for i, merges in enumerate(has_images) if not merges]
        plain = self._reader.text_arguments(torch.cat([ids[:, s] for s in text], 1)) if text else {}
        parts, row = [], 0
        for segment, merges in zip(segments, has_images, strict=True):
            if merges:
                arguments, cut = _embeds(segment).per_token, slice(segment.start, segment.stop)
            else:
                arguments, cut = plain, slice(row, row + segment.num_tokens)
                row += segment.num_tokens
            parts.append({name: value[:, cut] for name, value in arguments.items()})
        merged: dict[str, Any] = {}
        for name, like in {n: v for part in parts for n, v in part.items()}.items():
            pieces = [
                part[name] if name in part else like.new_zeros(1, s.num_tokens, *like.shape[2:])
                for part, s in zip(parts, segments, strict=True)
            ]
            merged[name] = torch.cat(pieces, 1)
        return merged


def _embeds(segment: Segment) -> Embeds:
    if segment.state.embeds is None:
        raise EngineError("a prompt's images were not read before its tokens")
    return segment.state.embeds


def _sources(segments: list[Segment], next_tokens: NextTokens) -> np.ndarray:
    """Return the row of each segment's token among the newest ones."""
    return np.array([next_tokens.rows[segment.sequence] for segment in segments], np.int64)


def _positions(segments: list[Segment]) -> np.ndarray:
    """Return positions ``[1, tokens]``, or ``[axes, 1, tokens]`` where images need axes."""
    axes = max(segment.state.layout.num_axes for segment in segments)
    counts = [segment.num_tokens for segment in segments]
    index = np.concatenate([np.arange(segment.start, segment.stop) for segment in segments])
    offsets = [0 if segment.is_prompt else segment.state.layout.offset for segment in segments]
    positions = np.empty((axes, len(index)), dtype=np.int64)
    positions[:] = index + np.repeat(offsets, counts)
    if axes > MAX_PLAIN_AXES:
        positions[0] = index
    for segment, row in zip(segments, accumulate(counts, initial=0), strict=False):
        own = segment.state.layout.positions
        if segment.is_prompt and own is not None:
            positions[:, row : row + segment.num_tokens] = own[:, segment.start : segment.stop]
    return positions if axes == 1 else positions[:, None]


def _visual_mask(segments: list[Segment]) -> np.ndarray | None:
    """Return the mask ``[tokens]`` of tokens with per-visual rows; None if there are none."""
    visuals = [_visual_of(segment) for segment in segments]
    if all(visual is None for visual in visuals):
        return None
    masks = [
        np.zeros(segment.num_tokens, dtype=bool)
        if visual is None
        else visual[segment.start : segment.stop]
        for segment, visual in zip(segments, visuals, strict=True)
    ]
    mask = np.concatenate(masks)
    return mask if mask.any() else None


def _visual_of(segment: Segment) -> np.ndarray | None:
    return _embeds(segment).visual if segment.images else None


def _visual(segments: list[Segment], mask: torch.Tensor) -> dict[str, Any]:
    """Join arguments with a row for each visual token, such as deepstack rows.

    Args:
        segments: of the step.
        mask: ``[tokens]`` one if a token has such rows.
    """
    cuts: list[tuple[Embeds, slice]] = []
    for segment in segments:
        if (visual := _visual_of(segment)) is not None:
            low, high = (int(visual[:end].sum()) for end in (segment.start, segment.stop))
            cuts.append((_embeds(segment), slice(low, high)))
    first = cuts[0][0]
    is_visual = mask.bool()[None]
    if first.visual_width:
        is_visual = is_visual[..., None].expand(-1, -1, first.visual_width)
    joined: dict[str, Any] = {first.visual_name: is_visual}
    for name, levels in first.per_visual.items():
        keys = levels.keys() if isinstance(levels, dict) else range(len(levels))
        rows = {
            key: torch.cat([embeds.per_visual[name][key][cut] for embeds, cut in cuts])
            for key in keys
        }
        joined[name] = rows if isinstance(levels, dict) else list(rows.values())
    return joined


def _flatten(
    items: Seq[WorkItem], states: dict[SequenceView, PromptState]
) -> tuple[list[Segment], list[Segment], dict[SequenceView, int]]:
    """Cut items at the end of their prompts.

    Returns:
        The decodes, the chunks after them in the flat step, and one past each sequence's last row.
    """
    decodes: list[Segment] = []
    chunks: list[Segment] = []
    for item in items:
        sequence, start, stop, ids = item.sequence, item.start, item.stop, item.token_ids
        border = max(start, min(stop, sequence.num_prompt_tokens))
        state = states[sequence]
        if start < border:
            chunks.append(Segment(sequence, state, start, border, ids[: border - start]))
        if border < stop:
            rest = Segment(sequence, state, border, stop, ids[border - start :])
            (decodes if start == border == stop - 1 else chunks).append(rest)
    ends, row = {}, 0
    for segment in decodes + chunks:
        row += segment.stop - segment.start
        ends[segment.sequence] = row
    return decodes, chunks, ends
