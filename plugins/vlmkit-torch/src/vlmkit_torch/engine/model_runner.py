"""Runs the decoder over work items, in as few forward passes as layers and memory allow.

Selects no work items and samples no tokens.
"""

from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path

import torch
from msgspec.structs import replace

from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit_torch.attention.paged import AttentionContext
from vlmkit_torch.cache.recurrent_states import RecurrentStates
from vlmkit_torch.cross_attention.layers import CrossAttentionLayers
from vlmkit_torch.devices import hardware
from vlmkit_torch.engine.batch import Batch, Batcher, NextTokens, PromptState
from vlmkit_torch.engine.compiled_steps import CompiledDecoder
from vlmkit_torch.engine.cuda_graphs import CudaGraphs
from vlmkit_torch.engine.non_finite import NonFiniteTracker
from vlmkit_torch.engine.packing import Packing
from vlmkit_torch.engine.static_steps import StaticSteps
from vlmkit_torch.engine.step_size import StepSize
from vlmkit_torch.model.views import Views
from vlmkit_torch.prompts.layout import Layout


class ModelRunner:
    """Computes hidden states and logits of work items.

    Attributes:
        states: what is known of the prompt of each sequence that was computed.
        recurrent: states of recurrent layers; None for other models.
        graphs: repeats decode steps; None if they must not be.

    Args:
        views: of the model.
        batcher: lays out forward passes.
        context: of the attention layers.
        cross_attention: the cross-attention layers; None for other models.
        recurrent: states of recurrent layers; None for other models.
        non_finite: marks sequences with values that are not finite; None if no prefix is shared.
        static_steps: of decodes, which are repeated as CUDA graphs; None if they must not be.
        compiled: the decoder for decode steps; None if they are not compiled.
    """

    def __init__(
        self,
        views: Views,
        batcher: Batcher,
        context: AttentionContext,
        *,
        cross_attention: CrossAttentionLayers | None,
        recurrent: RecurrentStates | None,
        non_finite: NonFiniteTracker | None,
        static_steps: StaticSteps | None = None,
        compiled: CompiledDecoder | None = None,
    ) -> None:
        self.states: dict[SequenceView, PromptState] = {}
        self._views = views
        self._batcher = batcher
        self._context = context
        self._cross_attention = cross_attention
        self.recurrent = recurrent
        self._non_finite = non_finite
        self._step_size = StepSize(context.cache.device)
        self._packing: Packing | None = None
        self._compiled = compiled
        self.graphs: CudaGraphs | None = None
        if static_steps is not None:
            self.graphs = CudaGraphs(context.cache.device, static_steps, self._decode)

    @property
    def max_pass_tokens(self) -> int | None:
        """Most tokens of a forward pass since memory ran out; None before."""
        return self._step_size.max_tokens

    def run_next(self, items: Seq[WorkItem], token_ids: torch.Tensor) -> StepOutput:
        """Compute one token of each item; see :class:`vlmkit.interfaces.engine.OverlapsSteps`.

        Args:
            items: of sequences that do not hold these tokens.
            token_ids: ``[items]`` int64 on the device.
        """
        rows: dict[SequenceView, int] = {item.sequence: row for row, item in enumerate(items)}
        placeholders = [replace(item, drafts=(0,)) for item in items]
        return self.run(placeholders, NextTokens(token_ids, rows))

    def run(self, items: Seq[WorkItem], next_tokens: NextTokens | None = None) -> StepOutput:
        """Compute the items; see :meth:`vlmkit.interfaces.engine.Engine.forward`.

        Args:
            items: one item for each sequence.
            next_tokens: the tokens to compute; None if the items hold them.
        """
        for item in items:
            if item.sequence not in self.states:
                self.states[item.sequence] = PromptState(item.sequence.plan.state)
        hidden: dict[SequenceView, torch.Tensor] = {}
        for group in self._groups(items):
            for rows in self._step_size.run(partial(self._compute, next_tokens), group):
                hidden |= rows
        output = StepOutput(
            logits=self._rows(items, hidden, "logits"), hidden=self._rows(items, hidden, "hidden")
        )
        if self._packing is not None:
            self._packing.after_step()
        return output

    def move(self, sequence: SequenceView, offset: int) -> None:
        """Shift the positions of an admitted sequence's answer by ``offset`` tokens."""
        self.states[sequence] = PromptState(Layout(None, offset))

    def enable_packing(self, files: Seq[Path]) -> None:
        """Let linear layers be packed after the first sequences; see :class:`.Packing`.

        Args:
            files: that weights may be mapped from.
        """
        self._packing = Packing(self._views, files)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Forget the tokens of a sequence after its first ``num_tokens``."""
        if self.graphs is not None:
            self.graphs.truncate(sequence, num_tokens)

    def forget(self, sequence: SequenceView) -> None:
        """Drop everything about a sequence."""
        self.states.pop(sequence, None)
        if self.graphs is not None:
            self.graphs.forget(sequence)
        if self.recurrent is not None:
            self.recurrent.forget(sequence)
        if self._packing is not None:
            self._packing.count_sequence()

    def clear(self) -> None:
        """Drop all states."""
        if self.recurrent is not None:
            self.recurrent.clear()
        self.states.clear()
        self._packing = self._compiled = None
        if self.graphs is not None:
            self.graphs.clear()

    def _rows(
        self, items: Seq[WorkItem], hidden: dict[SequenceView, torch.Tensor], output: str
    ) -> torch.Tensor | None:
        """Return the rows of one kind of output that items ask for."""
        wanted = [hidden[i.sequence] for i in items if i.num_rows and i.output == output]
        if not wanted:
            return None
        rows = torch.cat(wanted)
        return hardware.for_any_thread(self._views.head(rows) if output == "logits" else rows)

    def _groups(self, items: Seq[WorkItem]) -> list[list[WorkItem]]:
        """Return the items of each forward pass: all of them, unless layers are recurrent.

        Decodes come first, short sequences before long ones. Recurrent layers need all decodes in
        one column, and each chunk alone.
        """
        decodes = sorted(filter(_is_decode, items), key=lambda item: item.stop)
        chunks = [item for item in items if not _is_decode(item)]
        if self.recurrent is None:
            return [[*decodes, *chunks]]
        return [decodes, *([chunk] for chunk in chunks)] if decodes else [[c] for c in chunks]

    def _compute(
        self, next_tokens: NextTokens | None, items: list[WorkItem]
    ) -> dict[SequenceView, torch.Tensor]:
        """Run one forward pass; return the last hidden states of each item that wants rows."""
        hidden, batch = self._hidden(items, next_tokens)
        hidden = hidden.reshape(-1, hidden.shape[-1])
        if self._non_finite is not None:
            self._non_finite.record(hidden, batch.marks)
        self._drop_used_embeds(items)
        wanted = [item for item in items if item.num_rows]
        rows = torch.split(hidden[batch.rows], [item.num_rows for item in wanted])
        return dict(zip((item.sequence for item in wanted), rows, strict=True))

    def _hidden(
        self, items: list[WorkItem], next_tokens: NextTokens | None
    ) -> tuple[torch.Tensor, Batch]:
        """Return the last hidden states of all tokens of a pass, and how it was laid out."""
        graphs = self.graphs
        may_repeat = graphs is not None or self._compiled is not None
        is_decode = may_repeat and all(map(_is_decode, items))
        if graphs is not None and is_decode and graphs.may_compute(items):
            num_axes = max(self.states[item.sequence].layout.num_axes for item in items)
            if (static := graphs.steps.step_for(items, num_axes)) is not None:
                layout = (items, self.states, static, next_tokens)
                return graphs.run(items, static, partial(self._batcher.build_static, *layout))
        batch = self._batcher.build(items, self.states, next_tokens)
        owners, starts = [item.sequence for item in items], [item.start for item in items]
        if self.recurrent is not None:
            self.recurrent.load(owners, starts)
        in_column = self.recurrent is not None and len(items) > 1
        hidden = self._decode(batch, in_column=in_column, is_decode=is_decode)
        if batch.cross_attention is not None:
            batch.cross_attention.finish()
        if self.recurrent is not None:
            self.recurrent.save(owners, starts, [item.stop for item in items])
        return hidden, batch

    def _decode(
        self, batch: Batch, *, in_column: bool = False, is_decode: bool = True
    ) -> torch.Tensor:
        """Return the decoder's hidden states.

        Args:
            batch: of the pass.
            in_column: whether to pass one token of each sequence as ``[batch, 1]``.
            is_decode: whether it has decodes alone.
        """
        arguments = dict(batch.arguments())
        if in_column:  # positions with axes likewise
            arguments = {name: value.transpose(-1, -2) for name, value in arguments.items()}
        self._context.step = batch.step
        if self._cross_attention is not None:
            self._cross_attention.step = batch.cross_attention
        cache = None if self.recurrent is None else self.recurrent.cache
        arguments |= {"attention_mask": None, "past_key_values": cache, "use_cache": False}
        try:
            if is_decode and self._compiled is not None:
                output = self._compiled(arguments)
            else:
                output = self._views.decoder(**arguments)
            hidden: torch.Tensor = output.last_hidden_state
        finally:
            self._context.step = None
            if self._cross_attention is not None:
                self._cross_attention.step = None
        return hidden

    def _drop_used_embeds(self, items: Seq[WorkItem]) -> None:
        """Drop embeddings that no later token needs."""
        for item in items:
            images = item.sequence.prompt.media
            if images and item.stop >= images[-1].stop:
                self.states[item.sequence].embeds = None


def _is_decode(item: WorkItem) -> bool:
    return item.num_tokens == 1 and item.start >= item.sequence.num_prompt_tokens
