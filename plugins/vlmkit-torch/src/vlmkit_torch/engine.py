"""The LLM engine: weights and a paged cache, driven by work items.

Keeps the promises of ``vlmkit.protocols.Engine``. Never decides who runs, never samples.
"""

from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import TypeAlias

import torch

from vlmkit.block_pool import BlockPool
from vlmkit.errors import CheckpointError, RequestError, VlmkitError
from vlmkit.prompt import Prompt, Span
from vlmkit.protocols import EngineLimits
from vlmkit.registry import BuildContext
from vlmkit.sequence import Sequence
from vlmkit.step import WorkItem
from vlmkit_torch import capacity, faults, hardware, packing, rope, selfcheck
from vlmkit_torch.attention.paged import Board, bind
from vlmkit_torch.batch import Batch, Batcher, PromptState
from vlmkit_torch.kv_cache import KVCache
from vlmkit_torch.prompt_inputs import Layout, PromptReader
from vlmkit_torch.settings import EngineSettings
from vlmkit_torch.step_size import StepSize
from vlmkit_torch.views import Views
from vlmkit_torch.weights import LoadedModel, shared_model

NUM_REMEMBERED_LAYOUTS = 8  # between asking for a prompt's spans and running it

_Content: TypeAlias = tuple[tuple[int, ...], tuple[bytes, ...]]  # token ids, digests of images


class TorchEngine:
    """Runs any decoder-only model of transformers over a paged cache.

    Args:
        loaded: the model; its decoder is switched to paged attention for good.
        views: of that model.
        settings: sizes and switches.
    """

    def __init__(self, loaded: LoadedModel, views: Views, settings: EngineSettings) -> None:
        self._views = views
        views.use_paged_attention()
        kinds = capacity.layer_kinds(views)
        self._recurrent = capacity.recurrent_states(views)
        shares = settings.prefix_cache and self._recurrent is None
        self._board = Board(KVCache(settings.block_tokens, loaded.device))
        bind(views.decoder, self._board, kinds)
        needs = capacity.probe(views, self._board, self._recurrent, loaded.device)
        self._limits = capacity.limits(views, settings, needs, loaded.device, shares=shares)
        num_blocks = self._limits.capacity_tokens // settings.block_tokens
        self._pool = BlockPool(num_blocks, settings.block_tokens, shares_prefixes=shares)
        self._board.cache = KVCache(
            num_blocks * settings.block_tokens, loaded.device, needs.layer_shapes
        )
        self._reader = PromptReader(views, loaded.device, loaded.dtype)
        layer_bytes = max(shape.token_bytes for shape in needs.layer_shapes.values())
        self._batcher = Batcher(self._pool, self._reader, self._board.cache.zero_slot, layer_bytes)
        self._step_size = StepSize(loaded.device)
        self._states: dict[Sequence, PromptState] = {}
        self._layouts: OrderedDict[_Content, Layout] = OrderedDict()

    @property
    def limits(self) -> EngineLimits:
        """What this engine can do; constant."""
        return self._limits

    def atomic_spans(self, prompt: Prompt) -> tuple[Span, ...]:
        """Return the ranges whose tokens see each other both ways, such as image blocks.

        Raises:
            RequestError: a range is longer than one step may be.
        """
        with hardware.alone(self._board.cache.device):
            spans = self._layout(prompt).spans()
        longest = max((span.stop - span.start for span in spans), default=0)
        if longest > self._limits.max_chunk_tokens:
            raise RequestError(
                f"the prompt has a part of {longest} tokens that must be computed at once; "
                f"this engine computes at most {self._limits.max_chunk_tokens}",
                hint="raise engine.max_chunk_tokens",
            )
        return spans

    def admit(self, sequence: Sequence) -> int | None:
        """Make room, reusing a cached prefix; see :meth:`vlmkit.protocols.Cache.admit`."""
        if self._pool.num_sequences >= self._limits.max_sequences:
            return None
        return self._pool.admit(sequence)

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        return self._pool.reserve(sequence, num_tokens)

    def truncate(self, sequence: Sequence, num_tokens: int) -> int:
        """Forget what follows the first ``num_tokens``; return how many are kept.

        The cut moves down to the start of a block that others may share. A recurrent state goes
        back one step at most, and to the beginning otherwise.
        """
        if self._recurrent is not None and not self._recurrent.has(sequence, num_tokens):
            num_tokens = 0
        return self._pool.truncate(sequence, num_tokens)

    def release(self, sequence: Sequence) -> None:
        """Give up an admitted sequence's room and state."""
        self._states.pop(sequence, None)
        if self._recurrent is not None:
            self._recurrent.forget(sequence)
        self._pool.release(sequence)

    @torch.no_grad()
    def forward(self, items: Seq[WorkItem]) -> torch.Tensor:
        """Compute the items; see :meth:`vlmkit.protocols.Engine.forward`.

        Raises:
            EngineError: the device failed, or its memory is not enough for one of the items alone.
        """
        device = self._board.cache.device
        with hardware.alone(device):
            try:
                return hardware.handed_over(self._logits(items))
            except Exception as error:
                hint = "lower engine.max_chunk_tokens or engine.cache_gib"
                failure = faults.told(error, device, "this request", hint)
                if failure is None:
                    raise
        raise failure

    def _logits(self, items: Seq[WorkItem]) -> torch.Tensor:
        for item in items:
            if item.sequence not in self._states:
                self._states[item.sequence] = PromptState(self._layout(item.sequence.prompt))
        hidden: dict[Sequence, torch.Tensor] = {}
        for group in self._groups(items):
            for rows in self._step_size.run(self._compute, group):
                hidden |= rows
        wanted = [hidden[item.sequence] for item in items if item.wants_logits]
        if not wanted:
            return torch.zeros(0, self._limits.vocab_size)
        return self._views.head(torch.stack(wanted))

    def _groups(self, items: Seq[WorkItem]) -> list[list[WorkItem]]:
        """Return what is computed together: all, unless layers are recurrent.

        Decodes come first, those of few tokens before those of many. Recurrent layers want decodes
        as a column, and each chunk for itself.
        """
        decodes = sorted(filter(_is_decode, items), key=lambda item: item.stop)
        chunks = [item for item in items if not _is_decode(item)]
        if self._recurrent is None:
            return [[*decodes, *chunks]]
        return [decodes, *([chunk] for chunk in chunks)] if decodes else [[c] for c in chunks]

    def _compute(self, items: list[WorkItem]) -> dict[Sequence, torch.Tensor]:
        """Run one forward pass; return the last hidden state of each item that wants logits."""
        batch = self._batcher.build(items, self._states)
        arguments, states = batch.arguments, self._recurrent
        owners = [item.sequence for item in items]
        starts = [item.start for item in items]
        if states is not None:
            states.load(owners, starts)
            if len(items) > 1:  # [1, batch] to [batch, 1], positions with axes likewise
                arguments = {name: value.transpose(-1, -2) for name, value in arguments.items()}
        self._board.step = batch.step
        try:
            hidden = self._views.decoder(
                **arguments,
                attention_mask=None,
                past_key_values=None if states is None else states.cache,
                use_cache=False,
            ).last_hidden_state
        finally:
            self._board.step = None
        if states is not None:
            states.save(owners, starts, [item.stop for item in items])
        hidden = hidden.reshape(-1, hidden.shape[-1])
        self._note_computed(items, self._wipe_broken(hidden, batch))
        wanted = [item.sequence for item in items if item.wants_logits]
        return dict(zip(wanted, hidden[batch.rows], strict=True))

    def move(self, sequence: Sequence, offset: int) -> None:
        """Let the answer of an admitted sequence stand further on, as if its prompt were longer."""
        self._states[sequence] = PromptState(Layout(None, offset))

    def close(self) -> None:
        """Free the cache and let go of the weights."""
        self._board.cache.free()
        if self._recurrent is not None:
            self._recurrent.clear()
        self._states.clear()
        self._layouts.clear()
        del self._views, self._reader, self._batcher

    def _layout(self, prompt: Prompt) -> Layout:
        """Return a prompt's layout, remembered for a moment by content: no image is held."""
        key = (prompt.token_ids, tuple(slot.digest for slot in prompt.images))
        if (found := self._layouts.get(key)) is not None:
            return found
        with torch.no_grad():
            layout = self._layouts[key] = self._reader.layout(prompt)
        if len(self._layouts) > NUM_REMEMBERED_LAYOUTS:
            self._layouts.popitem(last=False)
        return layout

    def _wipe_broken(self, hidden: torch.Tensor, batch: Batch) -> set[Sequence]:
        """Wipe what a sequence with values that are not finite left in the cache.

        Its blocks will belong to others, and a masked slot still takes part in the arithmetic.
        """
        if hidden.isfinite().all():
            return set()
        is_broken = ~hidden.isfinite().all(-1)
        self._board.cache.wipe(batch.step.write_slots[is_broken])
        rows = is_broken.tolist()
        return {owner for owner, start, stop in batch.owners if any(rows[start:stop])}

    def _note_computed(self, items: Seq[WorkItem], broken: set[Sequence]) -> None:
        """Let full blocks be shared, and drop embeddings that no later token needs."""
        for item in items:
            sequence = item.sequence
            if sequence not in broken:
                self._pool.commit(sequence, item.stop)
            images = sequence.prompt.images
            if images and item.stop >= images[-1].stop:
                self._states[sequence].embeds = None


def _is_decode(item: WorkItem) -> bool:
    return item.num_tokens == 1 and item.start >= item.sequence.num_prompt_tokens


def build(context: BuildContext) -> TorchEngine:
    """Load the checkpoint and make an engine that was shown to compute right.

    Raises:
        CheckpointError: the checkpoint is broken or is not supported.
        ConfigError: the device is not there, or the cache is too small to be of use.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    loaded = shared_model(context, leads=True)
    try:
        capacity.refuse_unsupported(loaded.model)
        with hardware.alone(loaded.device), torch.no_grad():
            return _make(loaded, settings)
    except VlmkitError:
        raise
    except Exception as error:  # a family's code may raise anything where it is not as expected
        if failure := faults.told_at_load(error, loaded.device):
            raise failure from error
        raise CheckpointError(
            f"model type {loaded.model.config.model_type!r} is built in a way that this engine "
            "does not know"
        ) from error


def _make(loaded: LoadedModel, settings: EngineSettings) -> TorchEngine:
    views = Views(loaded.model)
    rope.settle(views, capacity.max_sequence_tokens(views, settings))
    # States have no second place where a mistake would show: they are always checked.
    is_checked = settings.self_check or capacity.recurrent_states(views) is not None
    expected = selfcheck.reference(views, loaded.device) if is_checked else None
    if settings.packed_weights and packing.gains(loaded):
        packing.pack(loaded.model, views.decoder)
        views = Views(loaded.model)
    engine = TorchEngine(loaded, views, settings)
    if expected is not None:
        selfcheck.check(engine, views, expected)
    return engine
