"""From settings and files to an engine and an encoder that are ready."""

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
from vlmkit_onnx.locate import DEFAULT_PRECISION, locate, locate_tower, present
from vlmkit_onnx.prompts.embeddings import Embeddings, TableEmbeddings
from vlmkit_onnx.prompts.families import family_of
from vlmkit_onnx.self_checks.decoder_check import try_decoder
from vlmkit_onnx.self_checks.row_length import tokens_without_effect
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.sessions.session import check, device_of, open_session, open_tower
from vlmkit_onnx.settings import ComputeSettings, EncoderSettings, EngineSettings
from vlmkit_onnx.slots import system_memory
from vlmkit_onnx.slots.device_memory import CPU
from vlmkit_onnx.slots.slot_manager import SlotBook
from vlmkit_onnx.vision.encoder import OnnxVisionEncoder

log = logging.getLogger(__name__)

GIB = 2**30
NUM_TRIED_SLOTS = 2  # a row and its neighbour
LEAST_TOKENS = 32  # a cache of fewer is of no use


def build_engine(context: BuildContext) -> OnnxEngine:
    """Open the decoder and make an engine.

    Raises:
        CheckpointError: the model's files are broken, or of a family that is not known.
        ConfigError: the device is not there, or the cache is too small to be of use.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    checkpoint = context.files
    layout = locate(checkpoint, settings.precision, settings.variant, context.on_stage)
    _refuse_device(layout, settings)
    session = open_session(layout.decoder.file, settings)
    longest = _longest(layout, settings, session)
    longest = _harmless(layout.decoder, session, settings, longest)
    device = device_of(settings)
    decoder = _driver(layout.decoder, session, settings.max_sequences, longest + 1, device)
    is_invariant = try_decoder(
        decoder, layout.decoder.file, settings, claims=layout.is_batch_invariant
    )
    limits = replace(
        _limits(settings, decoder, longest),
        is_batch_invariant=is_invariant,
        precision=layout.precision,
    )
    text_side.keep(context, checkpoint)
    shares = settings.prefix_cache and decoder.memory.is_shareable
    book = SlotBook(
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
        book,
        replace(limits, prefix_block_tokens=1 if shares else 0),
        layout.sliding_window,
        is_tried=settings.self_check,
    )


def build_encoder(context: BuildContext) -> OnnxVisionEncoder:
    """Open the vision tower and make an encoder.

    Raises:
        CheckpointError: the model's files are broken, or of a family that is not known.
        ConfigError: the device is not there.
    """
    settings: EncoderSettings = context.settings or EncoderSettings()
    graph = _tower(context, settings)
    session = open_tower(graph.file, settings)
    return OnnxVisionEncoder(graph, session, settings.max_batch_images)


def _tower(context: BuildContext, settings: EncoderSettings) -> VisionGraph:
    """Return the vision tower, of a precision that the device computes.

    Raises:
        ConfigError: it is made of 8-bit products, for which ONNX Runtime has kernels on CPUs only;
            or ``engine.precision`` is ``fp32``, which means all parts, and it is stored otherwise.
    """
    checkpoint = context.files
    on_cpu = device_of(settings) == CPU
    graph = locate_tower(
        checkpoint,
        settings.precision,
        settings.variant,
        context.on_stage,
        otherwise=_unless_asked(context, settings),
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


def _unless_asked(context: BuildContext, settings: EncoderSettings) -> TowerPrecision | None:
    """Return in which precision a tower is exported without ``media_encoder.precision``.

    None is as few bits as fit.
    """
    if device_of(settings) != CPU:
        return "fp32"
    return TOWER_BESIDE.get(_engine_precision(context) or "")


def _engine_precision(context: BuildContext) -> str | None:
    """Return what was asked for of the engine, if it is this plugin's."""
    name, settings = context.components.get("engine", ("", {}))
    return settings.get("precision") if name in ("onnx", "vlmkit-onnx:onnx") else None


def _stored(graph: VisionGraph) -> str:
    return graph.precision or stored_precision(read_header(graph.file))


def examine_engine(context: BuildContext) -> str:
    """Say how the engine would run a model; loads no weights and exports nothing.

    Raises:
        VlmkitError: what :func:`build_engine` would raise, as far as that shows so early.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    checkpoint = context.files
    if _is_awaited(checkpoint):
        return ""
    layout = present(checkpoint, settings.precision, settings.variant)
    if layout is None:
        export_cache.refuse_without_exporter()
        return f"to be exported as {settings.precision or DEFAULT_PRECISION}"
    _refuse_device(layout, settings)
    return _manner(layout.precision, layout.decoder.file, settings)


def examine_encoder(context: BuildContext) -> str:
    """Say how the encoder would run a model; as :func:`examine_engine` of the engine."""
    settings: EncoderSettings = context.settings or EncoderSettings()
    checkpoint = context.files
    if _is_awaited(checkpoint):
        return ""
    if kind_of(checkpoint) == "safetensors":
        precision = settings.precision or _unless_asked(context, settings)
        if not export_cache.finished(checkpoint, export_cache.TOWERS[precision]):
            export_cache.refuse_without_exporter()
            return " as ".join(filter(None, ["to be exported", precision]))
    graph = _tower(context, settings)
    return _manner(_stored(graph), graph.file, settings)


def _is_awaited(checkpoint: Checkpoint) -> bool:
    """Tell whether graphs are yet to be fetched, which say how they are run."""
    return checkpoint.is_preview and kind_of(checkpoint) != "safetensors"


def _manner(precision: str, file: Path, settings: ComputeSettings) -> str:
    """Name the precision, the device and the kernels that a graph is computed with."""
    form = check(file, settings)
    kind, number = device_of(settings)
    words = [precision, kind if kind == "cpu" else f"{kind}:{number}"]
    if form is not None:
        words.append(f"8-bit products with {form.name}")
    return ", ".join(filter(None, words))


def _refuse_device(layout: Layout, settings: ComputeSettings) -> None:
    """Turn down a device whose attention cannot compute what the graph asks for.

    How linear layers are stored does not matter: they unpack to what attention computes in.
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


def _longest(
    layout: Layout, settings: EngineSettings, session: onnxruntime.InferenceSession
) -> int:
    """Return how many tokens a sequence may have.

    Where the memory of all slots is set aside at once, they hold no more than ``cache_gib``, unless
    the user says how long a sequence or the cache is.

    Raises:
        ConfigError: the user asks for more than what the graph is right for.
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
    is_set_aside = device_of(settings) != CPU or system_memory.is_set_aside()
    if settings.max_sequence_tokens is not None or not is_set_aside:
        return longest
    slot_bytes = int(settings.cache_gib * GIB) // settings.max_sequences
    room = max(LEAST_TOKENS, slot_bytes // cached_token_bytes(layout.decoder, session) - 1)
    if room < longest:
        log.warning(
            "a cache's memory is set aside at once here: sequences have at most %d tokens, not %d; "
            "engine.cache_gib or engine.max_sequence_tokens allows more, and fewer "
            "engine.max_sequences make room",
            *(room, longest),
        )
    return min(longest, room)


def _harmless(
    graph: DecoderGraph,
    session: onnxruntime.InferenceSession,
    settings: EngineSettings,
    longest: int,
) -> int:
    """Return how many tokens a sequence may have that changes no other's answer.

    Raises:
        ConfigError: the user asks for more.
    """
    if graph.kind != "masked" or "If" not in read_header(graph.file).op_types:
        return longest  # it has nothing to choose by
    tried = _driver(graph, session, NUM_TRIED_SLOTS, longest + 1, device_of(settings))
    most = tokens_without_effect(tried, longest)
    tried.close()
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
    num_slots: int,
    slot_tokens: int,
    device: tuple[str, int],
) -> Decoder:
    if graph.kind == "masked":
        from vlmkit_onnx.decoders.masked_decoder import MaskedDecoder

        return MaskedDecoder(graph, session, num_slots, slot_tokens, device)
    if graph.kind == "concat":
        from vlmkit_onnx.decoders.concat_decoder import ConcatDecoder

        return ConcatDecoder(graph, session, num_slots, slot_tokens)
    from vlmkit_onnx.decoders.slots_decoder import SlotsDecoder

    return SlotsDecoder(graph, session, num_slots, slot_tokens, device)


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


def _limits(settings: EngineSettings, decoder: Decoder, longest: int) -> EngineLimits:
    """Return what the engine can do.

    Raises:
        ConfigError: the cache is too small to be of use.
    """
    token_bytes = max(1, decoder.memory.token_bytes)
    capacity = settings.cache_tokens or int(settings.cache_gib * GIB) // token_bytes
    capacity = min(capacity, (longest + 1) * settings.max_sequences)
    if capacity < LEAST_TOKENS:
        raise ConfigError(
            f"the cache has room for {capacity} tokens, and {LEAST_TOKENS} are the least; a token "
            f"takes {token_bytes} bytes",
            hint="raise engine.cache_gib or engine.cache_tokens",
        )
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
