"""The LLM engine: weights and a paged cache, driven by work items.

Implements ``vlmkit.interfaces.engine.Engine``. Selects no work items and samples no tokens.
"""

import logging
from collections.abc import Callable, Iterator, Sequence as Seq
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import torch
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError, OutOfMemory, RequestError, VlmkitError
from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.engine import NUM_RECOMPUTED, NUM_REPLAYED, Admission, EngineLimits
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Array, Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit import selfcheck_records
from vlmkit.kit.block_pool import BlockPool
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.one_line import named
from vlmkit.kit.safetensors_header import weights_of
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.attention.checked_backend import CheckedBackend
from vlmkit_torch.attention.choice import BackendChoice
from vlmkit_torch.attention.layered import LayeredAttention
from vlmkit_torch.attention.paged import AttentionContext, bind
from vlmkit_torch.attention.sdpa import SdpaAttention
from vlmkit_torch.cache.kv_cache import KVCache
from vlmkit_torch.cross_attention.image_cache import ImageCache
from vlmkit_torch.cross_attention.layers import CrossAttentionLayers
from vlmkit_torch.cross_attention.spec import cross_attention_spec
from vlmkit_torch.devices import faults, hardware
from vlmkit_torch.devices.own_thread import in_own_thread
from vlmkit_torch.engine import capacity, measured_memory, packing
from vlmkit_torch.engine.batch import Batcher
from vlmkit_torch.engine.cache_manager import CacheManager
from vlmkit_torch.engine.compiled_steps import CompiledDecoder
from vlmkit_torch.engine.model_runner import ModelRunner
from vlmkit_torch.engine.static_steps import StaticSteps
from vlmkit_torch.interfaces.torch_attention import AttentionNeeds
from vlmkit_torch.loading.decompression import exact_activations
from vlmkit_torch.loading.weights import LoadedModel, shared_model
from vlmkit_torch.model import positions
from vlmkit_torch.model.views import Views
from vlmkit_torch.prompts.prompt_reader import PromptReader
from vlmkit_torch.self_checks import text_check, vision_check
from vlmkit_torch.settings import EngineSettings
from vlmkit_torch.support.transformers_source import ANOTHER

log = logging.getLogger(__name__)


class TorchEngine:
    """Runs any decoder-only model of transformers over a paged cache.

    Args:
        loaded: the model; its decoder is switched to paged attention and stays so.
        views: of that model.
        settings: sizes and switches.
        choice: the attention backends; None means that of this plugin.

    Attributes:
        needs: what the model stores.
        num_image_rows: rows of images that are stored for cross-attention.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        views: Views,
        settings: EngineSettings,
        choice: BackendChoice | None = None,
    ) -> None:
        choice = choice or BackendChoice(BuildContext())
        self._views = views
        self._is_checked = settings.self_check
        self._parts = (loaded, settings, choice)
        device, block_tokens = loaded.device, settings.block_tokens
        views.use_paged_attention()
        kinds = capacity.layer_kinds(views.text_config)
        spec = cross_attention_spec(views.model)
        cross_attention = None if spec is None else CrossAttentionLayers(spec)
        recurrent = capacity.recurrent_states(views)
        is_int8 = settings.has_int8_cache
        context = AttentionContext(KVCache(block_tokens, device, is_int8=is_int8), SdpaAttention())
        functions = {} if cross_attention is None else cross_attention.functions
        self._bind = partial(bind, views.decoder, context, kinds, functions)
        self._bind()
        needs = capacity.probe(views, context, recurrent, device, cross_attention)
        self.needs = needs
        num_rows, available = 0, capacity.available_bytes(settings, loaded)
        if spec is not None:
            num_rows = capacity.image_rows(settings, needs, available, spec.max_image_rows)
        self._limits = capacity.limits(
            *(views, settings, needs, available),
            can_rewind=recurrent is None,
            num_image_rows=num_rows,
            rounding=loaded.rounding,
        )
        self.num_image_rows = num_rows
        num_blocks = self._limits.capacity_tokens // block_tokens
        shares = self._limits.prefix_block_tokens > 0
        pool = BlockPool(num_blocks, block_tokens, shares_prefixes=shares)
        images = None if spec is None else ImageCache(num_rows, keeps_unused=shares)
        context.cache = KVCache(
            num_blocks * block_tokens, device, needs.layer_shapes, block_tokens=block_tokens
        )
        self._context = context
        self._cache = CacheManager(pool, images, self._limits.max_sequences, device)
        self._reader = PromptReader(views, device, loaded.dtype)
        context.backend = choice.backend(
            AttentionNeeds(
                device=device,
                dtype=loaded.dtype,
                block_tokens=block_tokens,
                layers=tuple(context.layers[index] for index in sorted(context.layers)),
                has_image_spans=self._reader.may_have_image_spans,
                has_int8_cache=is_int8,
            )
        )
        non_finite = self._cache.non_finite
        static_steps = None
        if settings.cuda_graphs and device.type == "cuda" and recurrent is None and spec is None:
            static_steps = StaticSteps(self._limits, block_tokens, device, context.backend)
        compiled = None
        if settings.compile and recurrent is None and spec is None:
            compiled = CompiledDecoder(views.decoder, context)
        self._runner = ModelRunner(
            views,
            Batcher(pool, self._reader, context, non_finite, images),
            context,
            cross_attention=cross_attention,
            recurrent=recurrent,
            non_finite=non_finite if shares else None,
            static_steps=static_steps,
            compiled=compiled,
        )
        self._graphs = self._runner.graphs

    @property
    def limits(self) -> EngineLimits:
        """What this engine can do; constant."""
        return self._limits

    @property
    def is_recurrent(self) -> bool:
        """Whether layers have a state of fixed size."""
        return self._runner.recurrent is not None

    def state_bytes(self, sequence: SequenceView) -> int:
        """Return the bytes of the recurrent states of an admitted sequence."""
        recurrent = self._runner.recurrent
        return 0 if recurrent is None else recurrent.num_bytes(sequence)

    @property
    def max_pass_tokens(self) -> int | None:
        """Most tokens of a forward pass since memory ran out; None before."""
        return self._runner.max_pass_tokens

    @property
    def num_free_tokens(self) -> int:
        """Room that no admitted sequence has."""
        return self._cache.pool.num_free_blocks * self._cache.pool.block_tokens

    def set_cache_listener(self, listener: CacheListener) -> None:
        """Report shared and removed blocks to a listener."""
        self._cache.pool.listener = listener

    def read(self, prompt: Prompt) -> PromptPlan:
        """Lay out a prompt; ranges whose tokens see each other both ways must not be split.

        Raises:
            RequestError: a range is longer than a step may be, or the images exceed their cache.
        """
        with hardware.exclusive(self._device), torch.no_grad():
            layout = self._reader.layout(prompt)
        if layout.views and not self._context.backend.capabilities.image_spans:
            raise RequestError(
                "the prompt has tokens that see later ones, which the attention backend of this "
                "engine does not support",
                hint='engine.attention = "auto" takes one that does',
            )
        if self._cache.images is not None:
            self._cache.images.refuse_too_many(prompt, layout.attending_spans)
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
        return self._cache.admit(sequence)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        return self._cache.pool.reserve(sequence, num_tokens)

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let the first ``num_tokens`` be shared, unless they have values that are not finite."""
        self._cache.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Drop the tokens after the first ``num_tokens``."""
        self._cache.pool.truncate(sequence, num_tokens)
        self._runner.truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Release an admitted sequence's room and state."""
        self._cache.release(sequence)
        self._runner.forget(sequence)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items; see :meth:`vlmkit.interfaces.engine.Engine.forward`.

        Raises:
            OutOfMemory: the device's memory is not enough for one of the items alone.
            EngineError: the device failed.
        """
        return self._run(partial(self._runner.run, items))

    def forward_next(self, items: Seq[WorkItem], token_ids: Array) -> StepOutput:
        """Compute tokens that only the device knows, one of each item, without waiting for it.

        See :class:`vlmkit.interfaces.engine.OverlapsSteps`.

        Raises:
            OutOfMemory: the device's memory is not enough for one of the items alone.
            EngineError: the device failed.
        """
        ids = torch.as_tensor(token_ids, dtype=torch.int64, device=self._device)
        return self._run(partial(self._runner.run_next, items, ids))

    def start_read(self, array: Array) -> Callable[[], NDArray[Any]]:
        """Start to copy an array to the host; return a function that waits for the copy.

        A plain read would also wait for the steps that are started before it.
        """
        tensor = torch.as_tensor(array)
        if not tensor.is_cuda:
            return tensor.numpy
        copy = torch.empty(tensor.shape, dtype=tensor.dtype).pin_memory()
        copy.copy_(tensor, non_blocking=True)
        is_copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        is_copied.record()

        def wait() -> NDArray[Any]:
            is_copied.synchronize()
            return copy.numpy()

        return wait

    @torch.no_grad()
    def _run(self, compute: Callable[[], StepOutput]) -> StepOutput:
        with hardware.exclusive(self._device):
            try:
                return compute()
            except Exception as error:
                hint = "lower engine.max_chunk_tokens or engine.cache_gib"
                failure = faults.device_error(error, self._device, "this request", hint)
                if failure is None:
                    raise
        raise failure

    def move(self, sequence: SequenceView, offset: int) -> None:
        """Shift the positions of an admitted sequence's answer by ``offset`` tokens."""
        self._runner.move(sequence, offset)

    def counters(self) -> dict[str, int]:
        """Return counters of the steps that CUDA graphs computed."""
        graphs = self._graphs
        return {
            NUM_REPLAYED: 0 if graphs is None else graphs.num_replays,
            NUM_RECOMPUTED: 0 if graphs is None else graphs.num_recomputed,
        }

    @property
    def foreign_backend(self) -> str | None:
        """Describes the attention backends other than ``sdpa``; None if there is none."""
        backend = self._context.backend
        return backend.who if isinstance(backend, CheckedBackend | LayeredAttention) else None

    @property
    def trial_name(self) -> str | None:
        """Device, precision and backend; see :class:`vlmkit.interfaces.engine.VisionSelfCheck`."""
        model, backend = self._views.model, self.foreign_backend
        who = "" if backend is None else f" {backend}"
        return f"{model.device} {model.dtype}{who}" if self._is_checked else None

    def check_text(self, expected: torch.Tensor) -> None:
        """Compare paged, chunked computation with the plain model; see ``text_check``.

        An 8-bit cache rounds, which would hide small differences. A cache in the model's precision
        is therefore compared first.

        Args:
            expected: the logits of the plain model.

        Raises:
            CheckpointError: they differ by more than rounding.
        """
        if not self._has_int8_cache:
            text_check.check(self, self._views, expected, self.foreign_backend)
            return
        with self._with_dense_cache(text_check.NUM_CACHED) as dense:
            last = self._limits.max_sequence_tokens - 1
            text_check.check(dense, self._views, expected, dense.foreign_backend, last)
        text_check.check_int8(self, self._views, expected)

    def try_media(self, prompts: Seq[Prompt], encoder: MediaEncoder) -> None:
        """Compare answers about images with those of the family's own code.

        Raises:
            CheckpointError: they differ.
            VlmkitError: engine or encoder fails.
        """
        try:
            if hardware.has_pool_for_each_thread(self._device):
                in_own_thread(partial(self._check_images, prompts, encoder))
            else:
                self._check_images(prompts, encoder)
        except Exception as error:
            if failure := faults.device_error(error, self._device, "a small picture", ""):
                raise failure from error
            raise
        finally:
            faults.free_memory(self._device)

    def enable_packing(self, checkpoint: Checkpoint) -> None:
        """Let linear layers be packed after the first sequences; see :class:`.Packing`.

        Args:
            checkpoint: whose files the weights may be mapped from.
        """
        files = weights_of(checkpoint).files
        self._runner.enable_packing([checkpoint.path / name for name in files])

    def close(self) -> None:
        """Free the cache and the weights."""
        self._context.cache.free()
        self._cache.clear()
        self._runner.clear()
        del self._views, self._reader, self._runner, self._parts, self._bind

    @property
    def _device(self) -> torch.device:
        return self._context.cache.device

    @property
    def _has_int8_cache(self) -> bool:
        return self._parts[1].has_int8_cache

    def _check_images(self, prompts: Seq[Prompt], encoder: MediaEncoder) -> None:
        with (
            hardware.exclusive(self._device),
            torch.no_grad(),
            exact_activations(self._views.model),
        ):
            if not self._has_int8_cache:
                vision_check.check(self, self._views, self._reader, prompts, encoder)
                return
            longest = max(map(len, prompts), default=0) + vision_check.NUM_ANSWER_TOKENS
            with self._with_dense_cache(longest) as dense:
                vision_check.check(dense, self._views, self._reader, prompts, encoder)

    @contextmanager
    def _with_dense_cache(self, num_tokens: int) -> "Iterator[TorchEngine]":
        """Yield an engine of the same model whose small cache has the model's precision.

        Its attention backend is one that this engine may have, too.
        """
        loaded, settings, choice = self._parts
        num_blocks = 1 + -(-num_tokens // settings.block_tokens)
        small = msgspec.structs.replace(
            settings,
            cache_dtype="auto",
            cache_tokens=max(2, num_blocks) * settings.block_tokens,
            cache_gib=None,
            compile=False,
        )
        engine = TorchEngine(loaded, self._views, small, choice)
        try:
            yield engine
        finally:
            engine.close()
            self._bind()


def build(context: BuildContext) -> TorchEngine:
    """Load the checkpoint and return an engine that passed its self-check.

    Raises:
        CheckpointError: the checkpoint is broken or is not supported.
        ConfigError: the device is absent, or the cache is too small to be of use.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    choice = BackendChoice(context, settings.attention, settings.has_int8_cache)
    choice.refuse_absent()
    loaded = shared_model(context, for_engine=True)
    try:
        capacity.refuse_unsupported(loaded.model)
        with hardware.exclusive(loaded.device), torch.no_grad():
            return _checked_engine(context, loaded, settings, choice)
    except VlmkitError:
        raise
    except Exception as error:  # a family's code may raise anything if its structure is unexpected
        if failure := faults.device_error_at_load(error, loaded.device):
            raise failure from error
        raise CheckpointError(
            f"model type {loaded.model.config.model_type!r} is built in a way that this engine "
            f"does not know: {named(error)}",
            hint=f"{ANOTHER}; `vlmkit --debug ...` shows where, for a report",
        ) from error


def _checked_engine(
    context: BuildContext, loaded: LoadedModel, settings: EngineSettings, choice: BackendChoice
) -> TorchEngine:
    files, views = context.files, Views(loaded.model)
    positions.fix_rotary_frequencies(views, capacity.max_sequence_tokens(views, settings))
    positions.fix_attention_temperature(views.decoder)
    note = None  # the code of another plugin may change unnoticed
    if choice.is_own and loaded.is_read_here:
        note = text_check.note_of(files, settings, loaded.device, loaded.dtype)
    # Recurrent states are always checked: no other check would show a mistake.
    is_wanted = settings.self_check or capacity.recurrent_states(views) is not None
    is_checked = is_wanted and selfcheck_records.read(note) is None
    with exact_activations(loaded.model):
        expected = text_check.reference(views, loaded.device) if is_checked else None
    if measured_memory.applies(settings, loaded.device):
        loaded.cache_bytes = _measured_cache_bytes(context, loaded, views, settings, choice)
    engine = TorchEngine(loaded, views, settings, choice)
    if expected is not None:
        with exact_activations(loaded.model):
            engine.check_text(expected)
        selfcheck_records.write(note)
    if settings.packs_weights and packing.is_faster(loaded.device, loaded.dtype):
        engine.enable_packing(files)
    return engine


def _measured_cache_bytes(
    context: BuildContext,
    loaded: LoadedModel,
    views: Views,
    settings: EngineSettings,
    choice: BackendChoice,
) -> int | None:
    """Return what the largest step leaves to the cache; None if the device had no room for it.

    Raises:
        ConfigError: it leaves too little for a cache.
    """
    device, reason = loaded.device, ""
    small = measured_memory.settings_to_measure(settings, device)
    engine = TorchEngine(loaded, views, small, choice)
    token_bytes = engine.needs.token_bytes
    try:
        needs = measured_memory.measure(engine, context, loaded, settings)
    except Exception as error:
        if not isinstance(error, OutOfMemory) and not faults.is_out_of_memory(error):
            raise
        reason = str(error)
    finally:
        engine.close()
    # Outside the handler, because the error references what was computed.
    if not reason:
        return measured_memory.cache_bytes(needs, settings.memory_fraction, token_bytes, device)
    faults.free_memory(device)
    log.warning(
        "the largest step is not measured: %s; the cache has the planned size, and steps that do "
        "not fit are split",
        reason,
    )
    return None
