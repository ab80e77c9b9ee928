"""Builds the engine from settings and a GGUF file, and says in advance how it would run."""

from typing import Any, NamedTuple

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.kit.block_pool import BlockPool
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.cores import num_cores
from vlmkit.kit.weight_files import gguf_file
from vlmkit.plugins.registry import BuildContext
from vlmkit_llama.cells import CellTable
from vlmkit_llama.context import Context, LoadedModel
from vlmkit_llama.declarations import MAX_SEQUENCE_IDS
from vlmkit_llama.engine import LlamaEngine
from vlmkit_llama.library import NATIVE_HINT, lacks_vnni, open_library
from vlmkit_llama.settings import EngineSettings
from vlmkit_quantized import gguf_weights
from vlmkit_quantized.errors import FormatError

GIB = 2**30
BLOCK_TOKENS = 16
CELLS_MULTIPLE = 256  # to which the library rounds up
NUM_KEPT_IDS = 48
"""Released sequences whose prefixes may be shared. Each id takes a row of logits of memory."""

VALUE_BYTES = {"f16": 2, "f32": 4}


class CacheShape(NamedTuple):
    """What a file says about its cache.

    Attributes:
        trained_tokens: the longest sequence that the model was made for.
        token_values: keys and values of a token in all layers.
    """

    trained_tokens: int
    token_values: int


def build_engine(context: BuildContext) -> LlamaEngine:
    """Open library and model, and return an engine.

    Raises:
        CheckpointError: the file is broken, or the library cannot run its model.
        ConfigError: the library is absent or another build, or the cache is too small.
        OutOfMemory: there is too little memory for the cache.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    file = _checked(context.files)
    longest, num_tokens = _sizes(settings, _cache_shape(context.files))
    model = LoadedModel(open_library(settings.library), file)
    try:
        return _engine(model, settings, longest, num_tokens)
    except BaseException:
        model.close()
        raise


def examine_engine(context: BuildContext) -> str:
    """Return how the engine would run a model; load no weights.

    Raises:
        VlmkitError: an error of :func:`build_engine` that shows before weights are loaded.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    if not context.files.is_preview:
        _checked(context.files)
        _sizes(settings, _cache_shape(context.files))
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
    num_ids = min(MAX_SEQUENCE_IDS, settings.max_sequences + NUM_KEPT_IDS)
    threads = settings.num_threads or num_cores()
    cache = Context(model, settings, num_tokens, num_ids, threads)
    num_blocks = cache.num_tokens // BLOCK_TOKENS
    # The library reuses cells that the window of their sequence has left, even if others need them.
    keeps_all = not model.has_windows
    shares = settings.prefix_cache and keeps_all
    pool = BlockPool(num_blocks, BLOCK_TOKENS, shares_prefixes=shares)
    capacity = num_blocks * BLOCK_TOKENS
    max_chunk = min(settings.max_chunk_tokens, cache.max_batch_tokens)
    limits = EngineLimits(
        vocab_size=model.vocab_size,
        max_sequence_tokens=min(longest, capacity),
        max_sequences=settings.max_sequences,
        capacity_tokens=capacity,
        max_chunk_tokens=max_chunk,
        mixes_prefill_and_decode=True,
        prefix_block_tokens=BLOCK_TOKENS if shares else 0,
        max_item_rows=max_chunk,
        max_draft_tokens=max_chunk - 1 if keeps_all else 0,
        hidden_size=model.hidden_size,
        precision=model.description,
    )
    cells = CellTable(pool, cache, settings.max_sequences, num_ids)
    return LlamaEngine(model, cache, cells, limits)


def _checked(checkpoint: Checkpoint) -> Any:
    """Return the file, all of whose tensors have the shapes that its fields demand.

    The library reads it only then: it ends the process if an assumption of it fails.

    Raises:
        CheckpointError: the file is broken, or its model is not supported.
    """
    file = gguf_file(checkpoint)
    if file is None:
        raise CheckpointError(f"model {checkpoint.name!r} is no GGUF file")
    try:
        for _ in gguf_weights.weights(checkpoint):
            pass
    except FormatError as error:
        raise error.of_file(checkpoint) from error
    return file


def _cache_shape(checkpoint: Checkpoint) -> CacheShape:
    config = checkpoint.config
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or config["hidden_size"] // heads
    layers = config["num_hidden_layers"]
    return CacheShape(config["max_position_embeddings"], 2 * layers * kv_heads * head)


def _sizes(settings: EngineSettings, shape: CacheShape) -> tuple[int, int]:
    """Return the longest sequence and the tokens of the cache.

    Raises:
        ConfigError: a sequence is to be longer than the model was made for, or the cache is too
            small.
    """
    if (settings.max_sequence_tokens or 0) > shape.trained_tokens:
        raise ConfigError(
            f"engine.max_sequence_tokens is {settings.max_sequence_tokens}, and the model was made "
            f"for {shape.trained_tokens} tokens",
            hint="lower it, or leave it out",
        )
    longest = settings.max_sequence_tokens or shape.trained_tokens
    token_bytes = shape.token_values * VALUE_BYTES[settings.cache_dtype]
    room = settings.cache_tokens or int(settings.cache_gib * GIB) // token_bytes
    room = min(room, settings.max_sequences * (longest + BLOCK_TOKENS))
    if room < BLOCK_TOKENS:
        raise ConfigError(
            f"the cache has room for {room} tokens; a token takes {token_bytes} bytes",
            hint="raise engine.cache_gib or engine.cache_tokens",
        )
    return longest, -(-room // CELLS_MULTIPLE) * CELLS_MULTIPLE
