"""Builds the components from settings and GGUF files, and says in advance how they would run."""

import importlib.metadata

import msgspec

from vlmkit.errors import ConfigError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.kit.block_pool import BlockPool
from vlmkit.kit.cores import num_cores
from vlmkit.plugins.kinds import TOKENIZER
from vlmkit.plugins.registry import BuildContext
from vlmkit_llama.cells import PIECE_TOKENS, CellTable
from vlmkit_llama.context import Context, LoadedModel
from vlmkit_llama.encoder import LlamaEncoder
from vlmkit_llama.engine import LlamaEngine
from vlmkit_llama.files import ModelFiles, checked_files
from vlmkit_llama.library import NATIVE_HINT, PACKAGE, lacks_vnni, open_library
from vlmkit_llama.projector import Projector
from vlmkit_llama.settings import EncoderSettings, EngineSettings, TokenizerSettings
from vlmkit_llama.states import StateTable
from vlmkit_llama.tokenizer import LlamaTokenizer
from vlmkit_llama.tokenizer_check import compare_tokenizers

GIB = 2**30
BLOCK_TOKENS = 4
"""Tokens that are shared together: few, because a token that is not shared is computed again."""
CELLS_MULTIPLE = 256  # to which the library rounds up
VALUE_BYTES = {"f16": 2, "f32": 4}
STATE_BYTES = 4  # of a number of a recurrent state


def build_engine(context: BuildContext) -> LlamaEngine:
    """Open library and model, and return an engine.

    Raises:
        CheckpointError: the file is broken, the library cannot run its model, or the folder has the
            tokenizer of another one.
        ConfigError: the library is absent or another build, or the cache is too small.
        OutOfMemory: there is too little memory for the cache.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    files = checked_files(context.files)
    longest, num_tokens = cache_sizes(settings, files)
    compare_tokenizers(context.files, files.file)
    model = LoadedModel(open_library(settings.library), files.file)
    try:
        return _engine(model, settings, longest, num_tokens)
    except BaseException:
        model.close()
        raise


def build_encoder(context: BuildContext) -> LlamaEncoder:
    """Open the projector of a model, and return its encoder.

    Raises:
        CheckpointError: a file is broken, or the library cannot run its model.
        ConfigError: the library is absent or another build.
    """
    settings: EncoderSettings = context.settings or EncoderSettings()
    engine = _engine_settings(context)
    projector = _shared_projector(context, engine, settings.num_threads)
    precision = "f32" if engine.cache_dtype == "f32" else "f16"
    return LlamaEncoder(projector, _processor(engine), precision)


def build_tokenizer(context: BuildContext) -> LlamaTokenizer:
    """Return the text side of a model with images.

    Raises:
        CheckpointError: a file is broken, or the library cannot run its model.
        ConfigError: the library is absent or another build.
    """
    settings: TokenizerSettings = context.settings or TokenizerSettings()
    engine = _engine_settings(context)
    if settings.library:
        engine = msgspec.structs.replace(engine, library=settings.library)
    own = {"chat_template": settings.chat_template} if settings.chat_template else {}
    text_side = context.providers(TOKENIZER).build("hf", own, context)
    encoder = context.components.get("media_encoder", ("", {}))[1]
    projector = _shared_projector(context, engine, encoder.get("num_threads"))
    return LlamaTokenizer(text_side, projector, _processor(engine))


def _engine_settings(context: BuildContext) -> EngineSettings:
    """Return the settings of the engine of a pipeline, or defaults without a pipeline."""
    name, settings = context.components.get("engine", ("", {}))
    return msgspec.convert(settings if name.startswith("llama") else {}, EngineSettings)


def _shared_projector(
    context: BuildContext, engine: EngineSettings, num_threads: int | None
) -> Projector:
    """Return the projector of a pipeline, which tokenizer and encoder share.

    Raises:
        CheckpointError: a file is broken, or the library cannot read it.
        ConfigError: the library is absent or another build.
    """

    def opened() -> Projector:
        return Projector(
            open_library(engine.library),
            checked_files(context.files),
            num_threads=num_threads or engine.num_threads or num_cores(),
            is_exact=engine.cache_dtype == "f32",
            is_warmed_up=bool(context.components),
        )

    return context.share("vlmkit-llama: the projector", opened)


def _processor(engine: EngineSettings) -> str:
    """Return what features depend on beside the file: library and precision."""
    build = engine.library or importlib.metadata.version(PACKAGE)
    return f"llama.cpp:{build}:{engine.cache_dtype}"


def examine_engine(context: BuildContext) -> str:
    """Return how the engine would run a model; load no weights.

    Raises:
        VlmkitError: an error of :func:`build_engine` that shows before weights are loaded.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    if not context.files.is_preview:
        cache_sizes(settings, checked_files(context.files))
    features = open_library(settings.library).features
    words = f"CPU features of the library: {' '.join(features) or 'none'}"
    return (
        f"{words}; no VNNI, which this processor has: {NATIVE_HINT}"
        if lacks_vnni(features)
        else words
    )


def _engine(
    model: LoadedModel, settings: EngineSettings, longest: int, num_tokens: int
) -> LlamaEngine:
    threads = settings.num_threads or num_cores()
    spare = spare_tokens(is_recurrent=model.is_recurrent)
    num_ids = num_sequence_ids(settings, is_recurrent=model.is_recurrent)
    cache = Context(model, settings, num_tokens + spare, num_ids, threads)
    num_blocks = (cache.num_tokens - spare) // BLOCK_TOKENS
    # The library reuses cells that the window of their sequence has left, even if others need them.
    keeps_all = not model.has_windows and not model.is_recurrent
    shares = settings.prefix_cache and keeps_all
    capacity = num_blocks * BLOCK_TOKENS
    max_chunk = min(settings.max_chunk_tokens, cache.max_batch_tokens)
    limits = EngineLimits(
        vocab_size=model.vocab_size,
        max_sequence_tokens=min(longest, capacity),
        max_sequences=settings.max_sequences,
        capacity_tokens=capacity,
        max_chunk_tokens=max_chunk,
        # The library computes sequences with recurrent layers together if they have as many tokens.
        mixes_prefill_and_decode=not model.is_recurrent,
        prefix_block_tokens=BLOCK_TOKENS if shares else 0,
        max_item_rows=max_chunk,
        max_draft_tokens=max_chunk - 1 if keeps_all else 0,
        hidden_size=model.hidden_size,
        precision=model.description,
    )
    if model.is_recurrent:
        states = StateTable(cache, capacity, settings.max_sequences)
        return LlamaEngine(model, cache, states, limits)
    pool = BlockPool(num_blocks, BLOCK_TOKENS, shares_prefixes=shares)
    cells = CellTable(pool, cache, settings.max_sequences)
    return LlamaEngine(model, cache, cells, limits)


def num_sequence_ids(settings: EngineSettings, *, is_recurrent: bool) -> int:
    """Return the ids of the library that an engine uses."""
    if is_recurrent:
        return 2 * settings.max_sequences  # for the states before the last step
    return settings.max_sequences + 1  # for saved prefixes that are restored


def spare_tokens(*, is_recurrent: bool) -> int:
    """Return for how many tokens the cache has cells beside those of sequences."""
    return 0 if is_recurrent else PIECE_TOKENS


def states_bytes(settings: EngineSettings, files: ModelFiles) -> int:
    """Return the memory of recurrent states: two for each sequence."""
    return 2 * settings.max_sequences * files.state_values * STATE_BYTES


def cache_sizes(settings: EngineSettings, files: ModelFiles) -> tuple[int, int]:
    """Return the longest sequence and the tokens of the cache.

    Raises:
        ConfigError: a sequence is to be longer than the model was made for, or the cache is too
            small.
    """
    if (settings.max_sequence_tokens or 0) > files.trained_tokens:
        raise ConfigError(
            f"engine.max_sequence_tokens is {settings.max_sequence_tokens}, and the model was made "
            f"for {files.trained_tokens} tokens",
            hint="lower it, or leave it out",
        )
    longest = settings.max_sequence_tokens or files.trained_tokens
    token_bytes = files.token_values * VALUE_BYTES[settings.cache_dtype]
    most = settings.max_sequences * (longest + BLOCK_TOKENS)
    room = min(settings.cache_tokens or _cache_tokens(settings, files, token_bytes, most), most)
    if room < BLOCK_TOKENS:
        raise ConfigError(
            f"the cache has room for {room} tokens; a token takes {token_bytes} bytes",
            hint="raise engine.cache_gib or engine.cache_tokens",
        )
    return longest, -(-room // CELLS_MULTIPLE) * CELLS_MULTIPLE


def _cache_tokens(settings: EngineSettings, files: ModelFiles, token_bytes: int, most: int) -> int:
    """Return how many tokens fit beside recurrent states, and at most ``most``.

    Raises:
        ConfigError: the states do not fit.
    """
    room, states = int(settings.cache_gib * GIB), states_bytes(settings, files)
    if states > room:
        raise ConfigError(
            f"the recurrent states of {settings.max_sequences} sequences take {states / GIB:.1f} "
            f"GiB, and engine.cache_gib is {settings.cache_gib:g}",
            hint="lower engine.max_sequences, or raise engine.cache_gib",
        )
    return (room - states) // token_bytes if token_bytes else most
