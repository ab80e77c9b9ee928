"""Turns work items into one flat step: the decoder's arguments and what attention has to know.

Decides nothing about who runs and computes nothing of the model.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from vlmkit.block_pool import BlockPool
from vlmkit.errors import EngineError
from vlmkit.sequence import Sequence
from vlmkit.step import WorkItem
from vlmkit_torch.attention.step import Chunk, DecodeGroup, Step, Visibility
from vlmkit_torch.grouping import batches
from vlmkit_torch.prompt_inputs import MANY_AXES, Embeds, Layout, PromptReader


@dataclass(slots=True)
class PromptState:
    """What the engine remembers of an admitted sequence's prompt."""

    layout: Layout
    embeds: Embeds | None = None


class Segment(NamedTuple):
    """Tokens ``[start, stop)`` of one sequence, all of its prompt or all after it."""

    sequence: Sequence
    state: PromptState
    start: int
    stop: int

    @property
    def is_prompt(self) -> bool:
        """Whether the tokens are the prompt's."""
        return self.start < self.sequence.num_prompt_tokens

    @property
    def images(self) -> list[int]:
        """The images whose slots the tokens touch."""
        if not self.is_prompt:
            return []
        slots = enumerate(self.sequence.prompt.images)
        return [i for i, slot in slots if slot.start < self.stop and slot.stop > self.start]


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass.

    Attributes:
        arguments: of the decoder.
        step: for attention.
        rows: ``[rows]`` flat tokens whose logits are wanted, in the order of the items.
        owners: the sequence of each flat segment and the segment's rows, half-open.
    """

    arguments: dict[str, Any]
    step: Step
    rows: torch.Tensor
    owners: list[tuple[Sequence, int, int]]


class Batcher:
    """Builds batches for one engine.

    Args:
        pool: says which blocks a sequence has.
        reader: reads prompts.
        zero_slot: the cache slot that is always zero.
        layer_bytes: the most that a layer keeps for a token.
    """

    def __init__(
        self, pool: BlockPool, reader: PromptReader, zero_slot: int, layer_bytes: int
    ) -> None:
        self._pool = pool
        self._reader = reader
        self._zero_slot = zero_slot
        self._layer_bytes = layer_bytes
        self._within = np.arange(pool.block_tokens)

    def build(self, items: Seq[WorkItem], states: dict[Sequence, PromptState]) -> Batch:
        """Lay out the items: decodes first, those of few tokens before those of many; then chunks.

        Args:
            items: whose decodes come in that order.
            states: of their sequences.
        """
        decodes, chunks, last_rows = _flatten(items, states)
        segments = decodes + chunks
        for segment in segments:
            self._read_embeds(segment)
        owners, row = [], 0
        for segment in segments:
            owners.append((segment.sequence, row, row + segment.stop - segment.start))
            row = owners[-1][2]
        rows = [last_rows[item.sequence] for item in items if item.wants_logits]
        return Batch(
            arguments={**self._inputs(segments), "position_ids": self._positions(segments)},
            step=self._step(segments, len(decodes)),
            rows=self._device(np.array(rows, dtype=np.int64)),
            owners=owners,
        )

    def _device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._reader.device)

    def _slots(self, sequence: Sequence, stop: int) -> np.ndarray:
        """Return the cache slots of a sequence's tokens ``[0, stop)``."""
        size = self._pool.block_tokens
        blocks = np.array(self._pool.blocks(sequence)[: -(-stop // size)], dtype=np.int64)
        return (blocks[:, None] * size + self._within).reshape(-1)[:stop]

    def _step(self, segments: list[Segment], num_decodes: int) -> Step:
        slots = [self._slots(segment.sequence, segment.stop) for segment in segments]
        writes = [own[s.start :] for own, s in zip(slots, segments, strict=True)]
        lengths = [len(own) for own in slots[:num_decodes]]
        ranges = batches(lengths, self._layer_bytes)
        groups = tuple(self._group(rows, slots[slice(*rows)]) for rows in ranges)
        chunks, row = [], num_decodes
        for segment, own in zip(segments[num_decodes:], slots[num_decodes:], strict=True):
            rows = (row, row + segment.stop - segment.start)
            chunks.append(
                Chunk(rows, segment.start, self._device(own), self._reader.dtype, _views(segment))
            )
            row = rows[1]
        return Step(self._device(np.concatenate(writes)), groups, tuple(chunks))

    def _group(self, rows: tuple[int, int], slots: list[np.ndarray]) -> DecodeGroup:
        lengths = [len(own) for own in slots]
        table = np.full((len(slots), max(lengths)), self._zero_slot, dtype=np.int64)
        for row, own in zip(table, slots, strict=True):
            row[: len(own)] = own
        only = slots[0] if len(slots) == 1 else None
        is_run = only is not None and bool((np.diff(only) == 1).all())
        run = int(only[0]) if only is not None and is_run else None
        return DecodeGroup(rows, self._device(table), lengths, self._reader.dtype, run)

    def _positions(self, segments: list[Segment]) -> torch.Tensor:
        """Return positions ``[1, tokens]``, or ``[axes, 1, tokens]`` where images need axes."""
        axes = max(segment.state.layout.num_axes for segment in segments)
        parts: list[torch.Tensor] = []
        plain: list[np.ndarray] = []
        for segment in segments:
            layout, index = segment.state.layout, np.arange(segment.start, segment.stop)
            if segment.is_prompt and layout.positions is not None:
                parts += self._plain_positions(plain, axes)
                own = layout.positions[:, segment.start : segment.stop]
                parts.append(own if own.shape[0] == axes else own.expand(axes, -1))
            else:
                offset = 0 if segment.is_prompt else layout.offset
                plain.append(np.stack([index, index + offset]))
        parts += self._plain_positions(plain, axes)
        positions = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return positions if axes == 1 else positions[:, None]

    def _plain_positions(self, plain: list[np.ndarray], axes: int) -> list[torch.Tensor]:
        """Return what gathered in ``plain``, as a part ``[axes, tokens]``, and empty it."""
        if not plain:
            return []
        both = np.concatenate(plain, 1)
        plain.clear()
        rows = np.broadcast_to(both[1], (axes, both.shape[1])).copy()
        if axes > MANY_AXES:
            rows[0] = both[0]
        return [self._device(rows)]

    def _read_embeds(self, segment: Segment) -> None:
        """See to it that the features of every image of a segment are merged in."""
        images = segment.images
        if not images:
            return
        sequence, state = segment.sequence, segment.state
        if absent := [i for i in images if i not in sequence.features]:
            raise EngineError(f"features of image {absent[0]} of a prompt are not there")
        if state.embeds is None or not state.embeds.images.issuperset(images):
            state.embeds = self._reader.embeds(sequence.prompt, sequence.features)

    def _inputs(self, segments: list[Segment]) -> dict[str, Any]:
        """Return token ids, or embeddings and their companions if a segment touches an image."""
        ids = [t for s in segments for t in s.sequence.tokens(s.start, s.stop)]
        touching = [bool(segment.images) for segment in segments]
        if not any(touching):
            return {"input_ids": self._device(np.array([ids]))}
        return self._merge(segments, touching, self._device(np.array([ids])))

    def _merge(
        self, segments: list[Segment], touching: list[bool], ids: torch.Tensor
    ) -> dict[str, Any]:
        """Join the arguments of segments with images and of those without."""
        bounds = np.cumsum([0, *(s.stop - s.start for s in segments)]).tolist()
        text = [slice(bounds[i], bounds[i + 1]) for i, has in enumerate(touching) if not has]
        plain = self._reader.plain(torch.cat([ids[:, s] for s in text], 1)) if text else {}
        parts, row = [], 0
        for segment, has_images in zip(segments, touching, strict=True):
            count = segment.stop - segment.start
            if has_images:
                arguments, cut = _embeds(segment).per_token, slice(segment.start, segment.stop)
            else:
                arguments, cut = plain, slice(row, row + count)
                row += count
            parts.append({name: value[:, cut] for name, value in arguments.items()})
        merged: dict[str, Any] = {}
        for name, like in {n: v for part in parts for n, v in part.items()}.items():
            pieces = [
                part[name] if name in part else like.new_zeros(1, s.stop - s.start, *like.shape[2:])
                for part, s in zip(parts, segments, strict=True)
            ]
            merged[name] = torch.cat(pieces, 1)
        return {**merged, **_visual(segments, touching)}


def _embeds(segment: Segment) -> Embeds:
    if segment.state.embeds is None:
        raise EngineError("a prompt's images were not read before its tokens")
    return segment.state.embeds


def _visual(segments: list[Segment], touching: list[bool]) -> dict[str, Any]:
    """Join what decoders take per visual token, such as deepstack rows."""
    with_rows = [
        segment
        for segment, has_images in zip(segments, touching, strict=True)
        if has_images and _embeds(segment).visual is not None
    ]
    if not with_rows:
        return {}
    first = _embeds(with_rows[0])
    masks, cuts = [], []
    for segment in segments:
        count = segment.stop - segment.start
        if segment not in with_rows:
            masks.append(torch.zeros(count, dtype=torch.bool))
            continue
        embeds = _embeds(segment)
        visual = embeds.visual.cpu() if embeds.visual is not None else torch.zeros(0)
        low = int(visual[: segment.start].sum())
        masks.append(visual[segment.start : segment.stop])
        cuts.append((embeds.per_visual, slice(low, low + int(masks[-1].sum()))))
    mask = torch.cat(masks).to(first.per_token["inputs_embeds"].device)[None]
    if not mask.any():
        return {}
    width = first.visual_width
    mask = mask[..., None].expand(-1, -1, width) if width else mask
    joined: dict[str, Any] = {first.visual_name: mask}
    for name, levels in first.per_visual.items():
        keys = levels.keys() if isinstance(levels, dict) else range(len(levels))
        rows = {key: torch.cat([own[name][key][cut] for own, cut in cuts]) for key in keys}
        joined[name] = rows if isinstance(levels, dict) else list(rows.values())
    return joined


def _views(segment: Segment) -> dict[str, Visibility]:
    """Return a family's masks for one segment of a prompt."""
    if not segment.is_prompt:
        return {}
    cut = slice(segment.start, segment.stop)
    return {
        name: Visibility(
            view.start[cut],
            view.stop[cut],
            None if view.dense is None else view.dense[cut, : segment.stop],
        )
        for name, view in segment.state.layout.views.items()
    }


def _flatten(
    items: Seq[WorkItem], states: dict[Sequence, PromptState]
) -> tuple[list[Segment], list[Segment], dict[Sequence, int]]:
    """Cut items at the end of their prompts.

    Returns:
        The decodes, the chunks that follow them in the flat step, and each sequence's last row.
    """
    decodes: list[Segment] = []
    chunks: list[Segment] = []
    for item in items:
        sequence, start, stop = item.sequence, item.start, item.stop
        border = sequence.num_prompt_tokens
        state = states[sequence]
        if start >= border:
            (decodes if stop - start == 1 else chunks).append(Segment(sequence, state, start, stop))
            continue
        chunks.append(Segment(sequence, state, start, min(stop, border)))
        if stop > border:
            chunks.append(Segment(sequence, state, border, stop))
    last, row = {}, 0
    for segment in decodes + chunks:
        row += segment.stop - segment.start
        last[segment.sequence] = row - 1
    return decodes, chunks, last
