"""Plans the memory of engine and encoder from the headers of their files.

The cache has the size that the engine gives it at load: both come from the same function. Opens no
library and reads no weight.
"""

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.memory_plan import MemoryNeed, MemoryPlan, PlannedLoad
from vlmkit.plugins.registry import BuildContext
from vlmkit_llama.build import VALUE_BYTES, cache_sizes, num_sequence_ids
from vlmkit_llama.cells import PIECE_TOKENS
from vlmkit_llama.files import ModelFiles, checked_files
from vlmkit_llama.settings import EngineSettings
from vlmkit_quantized import gguf_projector

MODULES = ("vlmkit_llama.build",)
FLOAT_BYTES = 4
HIDDEN_ROWS = 8  # rows of the hidden size that are alive in a layer, for each token
INNER_ROWS = 3  # rows of the feed-forward size
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
    token_bytes = files.token_values * VALUE_BYTES[settings.cache_dtype]
    weights = MemoryNeed(
        name="weights", num_bytes=files.sizes.weight_bytes, detail="as they are in the file"
    )
    cache = MemoryNeed(
        name="KV cache",
        num_bytes=(num_tokens + PIECE_TOKENS) * token_bytes,
        detail=f"{token_bytes:,} bytes per token, {num_tokens:,} tokens, at once",
        token_bytes=token_bytes,
    )
    saved = MemoryNeed(
        name="saved prefixes",
        num_bytes=num_tokens * token_bytes if settings.prefix_cache else 0,
        detail="of ended sequences, at most",
    )
    rows = num_sequence_ids(settings) * files.sizes.vocab * FLOAT_BYTES
    logits = MemoryNeed(name="logits", num_bytes=rows, detail="one row for each sequence id")
    return MemoryPlan(
        needs=(weights, cache, saved, logits, _step(settings, files, load, num_tokens)),
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


def _step(
    settings: EngineSettings, files: ModelFiles, load: PlannedLoad, num_tokens: int
) -> MemoryNeed:
    """Return the memory of the largest step: rows of a layer, scores of attention, and logits."""
    sizes = files.sizes
    chunk = min(load.max_step_tokens, max(settings.max_chunk_tokens, settings.max_sequences))
    per_token = HIDDEN_ROWS * sizes.hidden + INNER_ROWS * sizes.inner
    if settings.cache_dtype == "f32":
        per_token += sizes.heads * num_tokens  # scores: without flash attention
    rows = chunk * per_token + min(load.num_sequences, settings.max_sequences) * sizes.vocab
    return MemoryNeed(
        name="largest step", num_bytes=rows * FLOAT_BYTES, detail=f"{chunk:,} tokens of a prompt"
    )


def _stated(value: object) -> int:
    return value if isinstance(value, int) else 0
