"""Plans the memory of engine and encoder from the headers of their files.

The cache has the size that the engine gives it at load: both come from the same function. Opens no
library and reads no weight.
"""

from collections.abc import Iterator

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.memory_plan import MemoryNeed, MemoryPlan, PlannedLoad
from vlmkit.plugins.registry import BuildContext
from vlmkit_llama.build import (
    VALUE_BYTES,
    cache_sizes,
    num_sequence_ids,
    spare_tokens,
    states_bytes,
)
from vlmkit_llama.files import ModelFiles, checked_files
from vlmkit_llama.settings import EngineSettings
from vlmkit_quantized import gguf_projector

MODULES = ("vlmkit_llama.build",)
FLOAT_BYTES = 4
HIDDEN_ROWS = 8  # rows of the hidden size that are alive in a layer, for each token
INNER_ROWS = 3  # rows of the feed-forward size
SCANNED_ROWS = 6  # rows of the inner size of a recurrent layer
MAX_PATCHES = 4096  # of an image that a tower encodes at once


def plan_engine(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    """Return the memory of the engine.

    Raises:
        CheckpointError: the file is broken.
        ConfigError: the cache is too small.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    files = checked_files(context.files)
    longest, num_tokens = cache_sizes(settings, files)
    weights = MemoryNeed(
        name="weights", num_bytes=files.sizes.weight_bytes, detail="as they are in the file"
    )
    is_recurrent = files.state_values > 0
    num_ids = num_sequence_ids(settings, is_recurrent=is_recurrent)
    rows = num_ids * files.sizes.vocab * FLOAT_BYTES
    logits = MemoryNeed(name="logits", num_bytes=rows, detail="one row for each sequence id")
    return MemoryPlan(
        needs=(
            weights,
            *_cache(settings, files, num_tokens),
            logits,
            _step(settings, files, load, num_tokens),
        ),
        precision="",
        limits=EngineLimits(
            vocab_size=files.sizes.vocab,
            max_sequence_tokens=min(longest, num_tokens),
            max_sequences=settings.max_sequences,
            capacity_tokens=num_tokens,
            max_chunk_tokens=settings.max_chunk_tokens,
            hidden_size=files.sizes.hidden,
        ),
        modules=MODULES,
    )


def plan_encoder(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    """Return the memory of the media encoder, which encodes one tile or image at once.

    Raises:
        CheckpointError: a file is broken.
    """
    files = checked_files(context.files)
    if files.projector is None:
        return MemoryPlan(needs=())
    found = gguf_projector.read(files.projector)
    num_bytes = sum(tensor.num_bytes for tensor in found.tensors.values())
    needs = [MemoryNeed(name="weights", num_bytes=num_bytes, detail="vision tower")]
    if load.slots:
        hidden = _stated(found.fields.get("clip.vision.embedding_length"))
        inner = _stated(found.fields.get("clip.vision.feed_forward_length"))
        per_patch = HIDDEN_ROWS * hidden + INNER_ROWS * inner
        needs.append(
            MemoryNeed(
                name="largest image",
                num_bytes=MAX_PATCHES * per_patch * FLOAT_BYTES,
                detail=f"up to {MAX_PATCHES:,} patches",
            )
        )
    return MemoryPlan(needs=tuple(needs), modules=MODULES)


def _cache(settings: EngineSettings, files: ModelFiles, num_tokens: int) -> Iterator[MemoryNeed]:
    """Yield the memory of what is kept of sequences."""
    is_recurrent = files.state_values > 0
    if token_bytes := files.token_values * VALUE_BYTES[settings.cache_dtype]:
        yield MemoryNeed(
            name="KV cache",
            num_bytes=(num_tokens + spare_tokens(is_recurrent=is_recurrent)) * token_bytes,
            detail=f"{token_bytes:,} bytes per token, {num_tokens:,} tokens, at once",
            token_bytes=token_bytes,
        )
    if is_recurrent:
        num_bytes = states_bytes(settings, files)
        each = num_bytes // settings.max_sequences
        yield MemoryNeed(
            name="recurrent states",
            num_bytes=num_bytes,
            detail=f"{each:,} bytes per sequence, {settings.max_sequences} sequences, at once",
            sequence_bytes=each,
        )
    else:
        yield MemoryNeed(
            name="saved prefixes",
            num_bytes=num_tokens * token_bytes if settings.prefix_cache else 0,
            detail="of ended sequences, at most",
        )


def _step(
    settings: EngineSettings, files: ModelFiles, load: PlannedLoad, num_tokens: int
) -> MemoryNeed:
    """Return the memory of the largest step: rows of a layer, scores of attention, and logits."""
    sizes = files.sizes
    chunk = min(load.max_step_tokens, max(settings.max_chunk_tokens, settings.max_sequences))
    inner = max(INNER_ROWS * sizes.inner, SCANNED_ROWS * sizes.scanned)
    per_token = HIDDEN_ROWS * sizes.hidden + inner
    if settings.cache_dtype == "f32":
        per_token += sizes.heads * num_tokens  # scores: without flash attention
    rows = chunk * per_token + min(load.num_sequences, settings.max_sequences) * sizes.vocab
    return MemoryNeed(
        name="largest step", num_bytes=rows * FLOAT_BYTES, detail=f"{chunk:,} tokens of a prompt"
    )


def _stated(value: object) -> int:
    return value if isinstance(value, int) else 0
