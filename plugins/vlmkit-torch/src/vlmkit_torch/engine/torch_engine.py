"""The LLM engine: weights and a paged cache, driven by work items.

Keeps the promises of ``vlmkit.interfaces.engine.Engine``. Never decides who runs, never samples.
"""

from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path

import torch

from vlmkit.errors import CheckpointError, RequestError, VlmkitError
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit import selfcheck_records
from vlmkit.kit.block_pool import BlockPool
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.one_line import named
from vlmkit.kit.safetensors_header import weights_of
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.attention.grouping import Costs
from vlmkit_torch.attention.paged import Board, bind
from vlmkit_torch.cache.kv_cache import KVCache
from vlmkit_torch.cross_attention.family import crossing_of
from vlmkit_torch.cross_attention.image_cache import PictureCache
from vlmkit_torch.cross_attention.layers import Onlookers
from vlmkit_torch.devices import faults, hardware
from vlmkit_torch.devices.own_thread import in_own_thread
from vlmkit_torch.engine import capacity, packing
from vlmkit_torch.engine.batch import Batcher, PromptState
from vlmkit_torch.engine.health import Health
from vlmkit_torch.engine.step_size import StepSize
from vlmkit_torch.loading.decompression import exact_activations
from vlmkit_torch.loading.weights import LoadedModel, shared_model
from vlmkit_torch.model import positions
from vlmkit_torch.model.views import Views
from vlmkit_torch.prompts.prompt_reader import Layout, PromptReader
from vlmkit_torch.self_checks import text_check, vision_check
from vlmkit_torch.settings import EngineSettings
from vlmkit_torch.support.transformers_source import ANOTHER


class TorchEngine:
    """Runs any decoder-only model of transformers over a paged cache.

    Args:
        loaded: the model; its decoder is switched to paged attention for good.
        views: of that model.
        settings: sizes and switches.
    """

    def __init__(self, loaded: LoadedModel, views: Views, settings: EngineSettings) -> None:
        self._views = views
        self._is_checked = settings.self_check
        views.use_paged_attention()
        kinds = capacity.layer_kinds(views.text_config)
        crossing = crossing_of(views.model)
        self._onlookers = None if crossing is None else Onlookers(crossing)
        self._recurrent = capacity.recurrent_states(views)
        goes_back = self._recurrent is None
        self._board = Board(KVCache(settings.block_tokens, loaded.device))
        looks = {} if self._onlookers is None else self._onlookers.looks
        bind(views.decoder, self._board, kinds, looks)
        needs = capacity.probe(views, self._board, self._recurrent, loaded.device, self._onlookers)
        num_rows, room = 0, capacity.room_bytes(settings, loaded)
        if crossing is not None:
            num_rows = capacity.picture_rows(settings, needs, room, crossing.most_rows)
        self._limits = capacity.limits(
            *(views, settings, needs, room),
            goes_back=goes_back,
            num_picture_rows=num_rows,
        )
        num_blocks = self._limits.capacity_tokens // settings.block_tokens
        shares = self._limits.prefix_block_tokens > 0
        self._pool = BlockPool(num_blocks, settings.block_tokens, shares_prefixes=shares)
        self._pictures = PictureCache(num_rows, keeps_unused=shares) if crossing else None
        self._board.cache = KVCache(
            num_blocks * settings.block_tokens, loaded.device, needs.layer_shapes
        )
        self._reader = PromptReader(views, loaded.device, loaded.dtype)
        self._health = Health(self._limits.max_sequences, loaded.device)
        costs = Costs(
            token_bytes=max(shape.token_bytes for shape in needs.layer_shapes.values()),
            call_bytes=hardware.call_bytes(loaded.device),
            may_split=loaded.dtype == torch.float32,  # torch's kernel keeps scores more precisely
        )
        self._batcher = Batcher(
            self._pool, self._reader, self._board, costs, self._health, self._pictures
        )
        self._step_size = StepSize(loaded.device)
        self._states: dict[SequenceView, PromptState] = {}
        self._committed: dict[SequenceView, int] = {}  # tokens whose health is not known yet
        self._packing: packing.Packing | None = None

    @property
    def limits(self) -> EngineLimits:
        """What this engine can do; constant."""
        return self._limits

    @property
    def num_free_tokens(self) -> int:
        """Room that no admitted sequence has."""
        return self._pool.num_free_blocks * self._pool.block_tokens

    def read(self, prompt: Prompt) -> PromptPlan:
        """Lay a prompt out; ranges whose tokens see each other both ways may not be cut.

        Raises:
            RequestError: a range is longer than one step may be, or there are too many pictures.
        """
        with hardware.alone(self._board.cache.device), torch.no_grad():
            layout = self._reader.layout(prompt)
        if self._pictures is not None:
            self._pictures.refuse_too_many(prompt, layout.sights)
        spans = layout.spans()
        longest = max((span.stop - span.start for span in spans), default=0)
        if longest > self._limits.max_chunk_tokens:
            raise RequestError(
                f"the prompt has a part of {longest} tokens that must be computed at once; "
                f"this engine computes at most {self._limits.max_chunk_tokens}",
                hint="raise engine.max_chunk_tokens",
            )
        return PromptPlan(spans, layout)

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Make room, reusing a cached prefix; see :meth:`vlmkit.interfaces.engine.Cache.admit`."""
        if self._pool.num_sequences >= self._limits.max_sequences:
            return None
        with hardware.alone(self._board.cache.device):
            self._share_committed()
        pictures = self._pictures
        if pictures is None:
            return self._pool.admit(sequence)
        admission = self._pool.admit(sequence, usable=partial(pictures.usable, sequence))
        if admission is not None and not pictures.admit(sequence, admission.num_cached):
            self._pool.release(sequence)
            return None
        return admission

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        return self._pool.reserve(sequence, num_tokens)

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let the first ``num_tokens`` be shared, unless they have values that are not finite.

        That is found out when somebody comes who might share them, or a sequence goes: a read waits
        for the device.
        """
        if self._pool.shares_prefixes:
            self._committed[sequence] = num_tokens

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Forget what follows the first ``num_tokens``."""
        self._pool.truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Give up an admitted sequence's room and state."""
        with hardware.alone(self._board.cache.device):
            self._share_committed()
            if self._pictures is not None:
                is_sound = sequence not in self._health.broken()
                self._pictures.release(sequence, is_sound=is_sound)
            self._health.forget(sequence)
        self._states.pop(sequence, None)
        if self._recurrent is not None:
            self._recurrent.forget(sequence)
        self._pool.release(sequence)
        if self._packing is not None:
            self._packing.count_sequence()

    def pack_later(self, files: Seq[Path]) -> None:
        """Pack linear layers once some sequences were served; see :class:`packing.Packing`.

        Args:
            files: that weights may be mapped from.
        """
        self._packing = packing.Packing(self._views, files)

    @torch.no_grad()
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items; see :meth:`vlmkit.interfaces.engine.Engine.forward`.

        Raises:
            OutOfMemory: the device's memory is not enough for one of the items alone.
            EngineError: the device failed.
        """
        device = self._board.cache.device
        with hardware.alone(device):
            try:
                return self._output(items)
            except Exception as error:
                hint = "lower engine.max_chunk_tokens or engine.cache_gib"
                failure = faults.told(error, device, "this request", hint)
                if failure is None:
                    raise
        raise failure

    def _output(self, items: Seq[WorkItem]) -> StepOutput:
        for item in items:
            if item.sequence not in self._states:
                self._states[item.sequence] = PromptState(item.sequence.plan.state)
        hidden: dict[SequenceView, torch.Tensor] = {}
        for group in self._groups(items):
            for rows in self._step_size.run(self._compute, group):
                hidden |= rows
        output = StepOutput(
            logits=self._rows(items, hidden, "logits"), hidden=self._rows(items, hidden, "hidden")
        )
        if self._packing is not None:
            self._packing.after_step()
        return output

    def _rows(
        self, items: Seq[WorkItem], hidden: dict[SequenceView, torch.Tensor], output: str
    ) -> torch.Tensor | None:
        """Return the rows that items want of one kind."""
        wanted = [hidden[i.sequence] for i in items if i.num_rows and i.output == output]
        if not wanted:
            return None
        rows = torch.cat(wanted)
        return hardware.handed_over(self._views.head(rows) if output == "logits" else rows)

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

    def _compute(self, items: list[WorkItem]) -> dict[SequenceView, torch.Tensor]:
        """Run one forward pass; return the last hidden states of each item that wants rows."""
        batch = self._batcher.build(items, self._states)
        arguments, states = batch.arguments, self._recurrent
        owners = [item.sequence for item in items]
        starts = [item.start for item in items]
        if states is not None:
            states.load(owners, starts)
            if len(items) > 1:  # [1, batch] to [batch, 1], positions with axes likewise
                arguments = {name: value.transpose(-1, -2) for name, value in arguments.items()}
        self._board.step = batch.step
        if self._onlookers is not None:
            self._onlookers.step = batch.crossing
        try:
            hidden = self._views.decoder(
                **arguments,
                attention_mask=None,
                past_key_values=None if states is None else states.cache,
                use_cache=False,
            ).last_hidden_state
        finally:
            self._board.step = None
            if self._onlookers is not None:
                self._onlookers.step = None
        if batch.crossing is not None:
            batch.crossing.finish()
        if states is not None:
            states.save(owners, starts, [item.stop for item in items])
        hidden = hidden.reshape(-1, hidden.shape[-1])
        if self._pool.shares_prefixes:
            self._health.note(hidden, batch.places)
        self._drop_used_embeds(items)
        wanted = [item for item in items if item.num_rows]
        rows = hidden[batch.rows].split([item.num_rows for item in wanted])
        return dict(zip((item.sequence for item in wanted), rows, strict=True))

    def move(self, sequence: SequenceView, offset: int) -> None:
        """Let the answer of an admitted sequence stand further on, as if its prompt were longer."""
        self._states[sequence] = PromptState(Layout(None, offset))

    @property
    def trial_name(self) -> str | None:
        """Device and precision; see :class:`vlmkit.interfaces.engine.VisionSelfCheck`."""
        model = self._views.model
        return f"{model.device} {model.dtype}" if self._is_checked else None

    def try_media(self, prompts: Seq[Prompt], encoder: MediaEncoder) -> None:
        """Hold answers about pictures against those of the family's own code.

        Raises:
            CheckpointError: they differ.
            VlmkitError: there is no answer.
        """
        device = self._board.cache.device
        try:
            if hardware.computes_in_teams(device):
                in_own_thread(partial(self._check_pictures, prompts, encoder))
            else:
                self._check_pictures(prompts, encoder)
        except Exception as error:
            if failure := faults.told(error, device, "a small picture", ""):
                raise failure from error
            raise
        finally:
            faults.free_memory(device)

    def _check_pictures(self, prompts: Seq[Prompt], encoder: MediaEncoder) -> None:
        model = self._views.model
        with (
            hardware.alone(self._board.cache.device),
            torch.no_grad(),
            exact_activations(model),
        ):
            vision_check.check(self, self._views, self._reader, prompts, encoder)

    def close(self) -> None:
        """Free the cache and let go of the weights."""
        self._board.cache.free()
        if self._pictures is not None:
            self._pictures.free()
        if self._recurrent is not None:
            self._recurrent.clear()
        self._states.clear()
        self._committed.clear()
        self._packing = None
        del self._views, self._reader, self._batcher

    def _drop_used_embeds(self, items: Seq[WorkItem]) -> None:
        """Drop embeddings that no later token needs."""
        for item in items:
            images = item.sequence.prompt.media
            if images and item.stop >= images[-1].stop:
                self._states[item.sequence].embeds = None

    def _share_committed(self) -> None:
        if not self._committed:
            return
        broken = self._health.broken()
        for sequence, num_tokens in self._committed.items():
            if sequence not in broken:
                self._pool.commit(sequence, num_tokens)
        self._committed.clear()


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
            return _make(context.files, loaded, settings)
    except VlmkitError:
        raise
    except Exception as error:  # a family's code may raise anything where it is not as expected
        if failure := faults.told_at_load(error, loaded.device):
            raise failure from error
        raise CheckpointError(
            f"model type {loaded.model.config.model_type!r} is built in a way that this engine "
            f"does not know: {named(error)}",
            hint=f"{ANOTHER}; `vlmkit --debug ...` shows where, for a report",
        ) from error


def _make(files: Checkpoint, loaded: LoadedModel, settings: EngineSettings) -> TorchEngine:
    views = Views(loaded.model)
    positions.fix_rotary_frequencies(views, capacity.max_sequence_tokens(views, settings))
    positions.fix_attention_temperature(views.decoder)
    note = text_check.note_of(files, settings, loaded.device, loaded.dtype)
    # States have no second place where a mistake would show: they are always checked.
    is_wanted = settings.self_check or capacity.recurrent_states(views) is not None
    is_checked = is_wanted and selfcheck_records.read(note) is None
    with exact_activations(loaded.model):
        expected = text_check.reference(views, loaded.device) if is_checked else None
    engine = TorchEngine(loaded, views, settings)
    if expected is not None:
        with exact_activations(loaded.model):
            text_check.check(engine, views, expected)
        selfcheck_records.write(note)
    if settings.packed_weights and packing.gains(loaded):
        engine.pack_later([files.path / name for name in weights_of(files).files])
    return engine
