"""Builds engine and encoder from settings and files.

Opens graphs, checks them and sizes the cache. Runs no request.
"""

import logging
from dataclasses import replace
from pathlib import Path

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx import text_side
from vlmkit_onnx.decoders.cache_nodes import cached_token_bytes
from vlmkit_onnx.decoders.decoder import Decoder
from vlmkit_onnx.engine.onnx_engine import OnnxEngine
from vlmkit_onnx.folder import export_cache
from vlmkit_onnx.folder.default_precision import default_precision, described
from vlmkit_onnx.folder.graph_facts import stored_precision
from vlmkit_onnx.folder.graph_header import read_header
from vlmkit_onnx.folder.layout import (
    DecoderGraph,
    Layout,
    TokenGraph,
    TokenTable,
    VisionGraph,
)
from vlmkit_onnx.folder.manifest import TOWER_BESIDE, TowerPrecision
from vlmkit_onnx.folder.refusal import kind_of
from vlmkit_onnx.locate import locate, locate_tower, present
from vlmkit_onnx.prompts.embeddings import Embeddings, TableEmbeddings
from vlmkit_onnx.prompts.families import family_of
from vlmkit_onnx.self_checks.decoder_check import check_decoder
from vlmkit_onnx.self_checks.row_length import max_independent_tokens
from vlmkit_onnx.sessions import huge_pages
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.sessions.session import (
    check,
    device_of,
    open_session,
    open_tower,
    weights_bytes,
)
from vlmkit_onnx.settings import ComputeSettings, EncoderSettings, EngineSettings
from vlmkit_onnx.slots import system_memory
from vlmkit_onnx.slots.cache_events import EVENT_BLOCK_TOKENS
from vlmkit_onnx.slots.memory import CPU, CacheSize
from vlmkit_onnx.slots.slot_manager import SlotManager
from vlmkit_onnx.vision.encoder import OnnxVisionEncoder

log = logging.getLogger(__name__)

GIB = 2**30
NUM_CHECKED_SLOTS = 2  # a row and another one beside it
MIN_TOKENS = 32  # of a cache


def build_engine(context: BuildContext) -> OnnxEngine:
    """Open the decoder and return an engine.

    Raises:
        CheckpointError: the model's files are broken, or its family is unknown.
        ConfigError: the device is absent, or the cache is too small to be of use.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    checkpoint = context.files
    layout = locate(checkpoint, settings.precision, settings.variant, context.on_stage)
    _refuse_device(layout, settings)
    session = open_session(layout.decoder.file, settings)
    if (
        device_of(settings)[0] == "cpu"
        and weights_bytes(layout.decoder.file) >= huge_pages.MIN_WEIGHTS_BYTES
    ):
        log.debug("%d bytes are in huge pages", huge_pages.move_resident())
    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    token_bytes = cached_token_bytes(layout.decoder, inputs, outputs)
    longest = longest_sequence(layout, settings, token_bytes)
    longest = _independent_length(layout.decoder, session, settings, longest)
    size = CacheSize(settings.max_sequences, longest + 1, device_of(settings))
    decoder = _driver(layout.decoder, session, size)
    is_invariant = check_decoder(
        decoder, layout.decoder.file, settings, claims=layout.is_batch_invariant
    )
    limits = replace(
        _limits(settings, decoder, longest),
        is_batch_invariant=is_invariant,
        precision=layout.precision,
    )
    text_side.keep(context, checkpoint)
    shares = settings.prefix_cache and decoder.memory.is_shareable
    slots = SlotManager(
        settings.max_sequences,
        longest + 1,
        limits.capacity_tokens,
        shares_prefixes=shares,
        copies=decoder.memory.copies,
    )
    return OnnxEngine(
        decoder,
        _open_embeddings(layout, settings, decoder),
        family_of(checkpoint.config),
        slots,
        replace(
            limits,
            prefix_block_tokens=1 if shares else 0,
            event_block_tokens=EVENT_BLOCK_TOKENS if shares else 0,
        ),
        layout.sliding_window,
        is_checked=settings.self_check,
    )


def build_encoder(context: BuildContext) -> OnnxVisionEncoder:
    """Open the vision tower and return an encoder.

    Raises:
        CheckpointError: the model's files are broken, or its family is unknown.
        ConfigError: the device is absent.
    """
    settings: EncoderSettings = context.settings or EncoderSettings()
    graph = _tower(context, settings)
    session = open_tower(graph.file, settings)
    return OnnxVisionEncoder(graph, session, settings.max_batch_images)


def _tower(context: BuildContext, settings: EncoderSettings) -> VisionGraph:
    """Return the vision tower, in a precision that the device supports.

    Raises:
        ConfigError: the tower has 8-bit products, for which ONNX Runtime has kernels on CPUs only;
            or ``engine.precision`` is ``fp32``, which covers all parts, and the tower has another.
    """
    checkpoint = context.files
    on_cpu = device_of(settings) == CPU
    graph = locate_tower(
        checkpoint,
        settings.precision,
        settings.variant,
        context.on_stage,
        default=_default_tower_precision(context, settings),
    )
    stored = _stored(graph)
    if settings.precision is None and _engine_precision(context) == "fp32" != stored:
        raise ConfigError(
            f"engine.precision is 'fp32', and the vision tower of model {checkpoint.name!r} is "
            f"{stored!r}",
            hint="`vlmkit export` the model's safetensors with --precision fp32; or leave "
            "engine.precision out",
        )
    if graph.precision == "w8a8" and not on_cpu:
        raise ConfigError(
            f"on {settings.device!r}, a vision tower in 'w8a8' does not run",
            hint='media_encoder.precision = "fp32"; of a folder of graphs, `vlmkit export` with '
            "--vision-precision fp32",
        )
    return graph


def _default_tower_precision(
    context: BuildContext, settings: EncoderSettings
) -> TowerPrecision | None:
    """Return the precision of an exported tower without ``media_encoder.precision``.

    None means as few bits as fit.
    """
    if device_of(settings) != CPU:
        return "fp32"
    return TOWER_BESIDE.get(_engine_precision(context) or "")


def _engine_precision(context: BuildContext) -> str | None:
    """Return the engine's precision by its settings, if the engine is this plugin's."""
    name, settings = context.components.get("engine", ("", {}))
    return settings.get("precision") if name in ("onnx", "vlmkit-onnx:onnx") else None


def _stored(graph: VisionGraph) -> str:
    return graph.precision or stored_precision(read_header(graph.file))


def examine_engine(context: BuildContext) -> str:
    """Return how the engine would run a model; load no weights and export nothing.

    Raises:
        VlmkitError: an error of :func:`build_engine` that shows before weights are loaded.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    checkpoint = context.files
    if _is_unfetched(checkpoint):
        return ""
    layout = present(checkpoint, settings.precision, settings.variant)
    if layout is None:
        export_cache.refuse_without_exporter()
        precision = settings.precision or default_precision(checkpoint)
        if precision == "stored":
            from vlmkit_onnx.export.stored_form import refuse

            refuse(checkpoint)
        return f"to be exported as {described(precision)}"
    _refuse_device(layout, settings)
    return _description(layout.precision, layout.decoder.file, settings)


def examine_encoder(context: BuildContext) -> str:
    """Return how the encoder would run a model; see :func:`examine_engine`."""
    settings: EncoderSettings = context.settings or EncoderSettings()
    checkpoint = context.files
    if _is_unfetched(checkpoint):
        return ""
    graph = tower_of(context, settings)
    if isinstance(graph, str):
        export_cache.refuse_without_exporter()
        return " as ".join(filter(None, ["to be exported", graph]))
    return _description(_stored(graph), graph.file, settings)


def tower_of(context: BuildContext, settings: EncoderSettings) -> VisionGraph | str:
    """Return the vision tower, or the precision in which it is still to be exported."""
    checkpoint = context.files
    if kind_of(checkpoint) == "weights":
        precision = settings.precision or _default_tower_precision(context, settings)
        if not export_cache.finished(checkpoint, export_cache.TOWERS[precision]):
            return precision or ""
    elif checkpoint.is_preview:
        return settings.precision or ""
    return _tower(context, settings)


def _is_unfetched(checkpoint: Checkpoint) -> bool:
    """Return whether graphs are still to be fetched, so that nothing is known of them."""
    return checkpoint.is_preview and kind_of(checkpoint) != "weights"


def _description(precision: str, file: Path, settings: ComputeSettings) -> str:
    """Return the precision, the device and the kernels of a graph, as words."""
    form = check(file, settings)
    kind, number = device_of(settings)
    words = [precision, kind if kind == "cpu" else f"{kind}:{number}"]
    if form is not None:
        words.append(f"8-bit products with {form.name}")
    return ", ".join(filter(None, words))


def _refuse_device(layout: Layout, settings: ComputeSettings) -> None:
    """Refuse a device whose attention does not support the graph.

    The storage of linear layers does not matter: they unpack to the precision of attention.
    """
    if device_of(settings) == CPU:
        return
    graph = layout.decoder
    cache = read_header(graph.file).inputs.get(graph.past_key % 0)
    if graph.kind == "concat":
        reason = "only decoders whose attention writes the cache in place run"
    elif cache is not None and cache.element_type != "float16":
        reason = (
            f"attention computes in half precision, and {graph.file.name!r} keeps "
            f"{cache.element_type!r}"
        )
    else:
        return
    raise ConfigError(
        f"on {settings.device!r}, {reason}",
        hint="vlmkit export MODEL DIR --precision fp16; of a folder that others exported, "
        'engine.variant = "fp16" or "q4f16" if it is there',
    )


def longest_sequence(layout: Layout, settings: EngineSettings, token_bytes: int) -> int:
    """Return how many tokens a sequence may have, each with ``token_bytes`` in the cache.

    If the memory of all slots is committed at once, they take no more than ``cache_gib``, unless
    settings state the length of a sequence or the size of the cache.

    Raises:
        ConfigError: settings exceed the length for which the graph is correct.
    """
    if (settings.max_sequence_tokens or 0) > layout.max_sequence_tokens:
        raise ConfigError(
            f"engine.max_sequence_tokens is {settings.max_sequence_tokens}, and "
            f"{layout.decoder.file.name!r} is right for {layout.max_sequence_tokens} tokens",
            hint="lower it, or leave it out",
        )
    longest = settings.max_sequence_tokens or layout.max_sequence_tokens
    if settings.cache_tokens is not None:
        return min(longest, settings.cache_tokens)
    commits_at_once = device_of(settings) != CPU or system_memory.commits_at_once()
    if settings.max_sequence_tokens is not None or not commits_at_once:
        return longest
    slot_bytes = int(settings.cache_gib * GIB) // settings.max_sequences
    room = max(MIN_TOKENS, slot_bytes // token_bytes - 1)
    if room < longest:
        log.warning(
            "a cache's memory is set aside at once here: sequences have at most %d tokens, not %d; "
            "engine.cache_gib or engine.max_sequence_tokens allows more, and fewer "
            "engine.max_sequences make room",
            *(room, longest),
        )
    return min(longest, room)


def _independent_length(
    graph: DecoderGraph,
    session: onnxruntime.InferenceSession,
    settings: EngineSettings,
    longest: int,
) -> int:
    """Return how long a sequence may be without changing another sequence's answer.

    Raises:
        ConfigError: settings exceed it.
    """
    if graph.kind != "masked" or "If" not in read_header(graph.file).op_types:
        return longest  # it cannot select by length
    size = CacheSize(NUM_CHECKED_SLOTS, longest + 1, device_of(settings))
    decoder = _driver(graph, session, size)
    most = max_independent_tokens(decoder, longest)
    decoder.close()
    if most == longest:
        return longest
    why = f"{graph.file.name!r} computes all rows of a step otherwise if one is over {most} tokens"
    if settings.max_sequence_tokens is not None:
        raise ConfigError(
            f"engine.max_sequence_tokens is {longest}, and {why}",
            hint=f"engine.max_sequence_tokens = {most} is the most; the torch engine has no such "
            "bound",
        )
    log.warning("%s: sequences have at most that, not %d", why, longest)
    return most


def _driver(
    graph: DecoderGraph,
    session: onnxruntime.InferenceSession,
    size: CacheSize,
) -> Decoder:
    if graph.kind == "masked":
        from vlmkit_onnx.decoders.masked_decoder import MaskedDecoder

        return MaskedDecoder(graph, session, size)
    if graph.kind == "concat":
        from vlmkit_onnx.decoders.concat_decoder import ConcatDecoder

        return ConcatDecoder(graph, session, size)
    from vlmkit_onnx.decoders.slots_decoder import SlotsDecoder

    return SlotsDecoder(graph, session, size)


def _open_embeddings(
    layout: Layout, settings: ComputeSettings, decoder: Decoder
) -> Embeddings | None:
    part = layout.embeddings
    if not decoder.spec.takes_embeddings or part is None:
        return None
    if isinstance(part, TokenGraph):
        from vlmkit_onnx.prompts.graph_embeddings import GraphEmbeddings

        return GraphEmbeddings(open_session(part.file, settings), part.names, part.image_token)
    return _open_table(part, decoder)


def _open_table(part: TokenTable, decoder: Decoder) -> TableEmbeddings:
    table = TableEmbeddings(part)
    if table.shape[1] != decoder.spec.hidden_size:
        raise CheckpointError(
            f"{part.file.name!r} has rows of {table.shape[1]} numbers, and the decoder takes "
            f"{decoder.spec.hidden_size}"
        )
    return table


def cache_capacity(settings: EngineSettings, token_bytes: int, longest: int) -> int:
    """Return how many tokens the cache holds.

    Raises:
        ConfigError: the cache is too small to be of use.
    """
    token_bytes = max(1, token_bytes)
    capacity = settings.cache_tokens or int(settings.cache_gib * GIB) // token_bytes
    capacity = min(capacity, (longest + 1) * settings.max_sequences)
    if capacity < MIN_TOKENS:
        raise ConfigError(
            f"the cache has room for {capacity} tokens, and {MIN_TOKENS} are the least; a token "
            f"takes {token_bytes} bytes",
            hint="raise engine.cache_gib or engine.cache_tokens",
        )
    return capacity


def _limits(settings: EngineSettings, decoder: Decoder, longest: int) -> EngineLimits:
    """Return what the engine can do.

    Raises:
        ConfigError: the cache is too small to be of use.
    """
    capacity = cache_capacity(settings, decoder.memory.token_bytes, longest)
    max_rows = min(decoder.spec.max_rows, settings.max_chunk_tokens)
    return EngineLimits(
        vocab_size=decoder.spec.vocab_size,
        max_sequence_tokens=min(longest, capacity - 1),
        max_sequences=settings.max_sequences,
        capacity_tokens=capacity,
        max_chunk_tokens=settings.max_chunk_tokens,
        max_item_rows=max_rows,
        max_draft_tokens=max_rows - 1 if decoder.memory.is_shareable else 0,
        hidden_size=decoder.spec.states_size,
    )
