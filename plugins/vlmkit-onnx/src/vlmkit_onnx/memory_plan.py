"""Plans the memory of engine and encoder from the declarations of their graphs.

The cache has the sizes that the engine gives it at load: both come from the same functions. Weights
are those of the graphs' files. Opens no session and reads no weight.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.memory_plan import MemoryNeed, MemoryPlan, PlannedLoad
from vlmkit.kit import weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.safetensors_header import weights_of
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.build import cache_capacity, longest_sequence, tower_of
from vlmkit_onnx.decoders.cache_nodes import cached_token_bytes
from vlmkit_onnx.folder.default_precision import default_precision, described
from vlmkit_onnx.folder.graph_header import GraphHeader, read_header
from vlmkit_onnx.folder.layout import Layout, VisionGraph
from vlmkit_onnx.folder.refusal import kind_of
from vlmkit_onnx.locate import present
from vlmkit_onnx.sessions import products
from vlmkit_onnx.sessions.session import device_of
from vlmkit_onnx.settings import EncoderSettings, EngineSettings
from vlmkit_onnx.slots.memory import CPU

MODULES = ("onnxruntime", "vlmkit_onnx.build", "vlmkit_onnx.decoders.slots_decoder")
FLOAT_BYTES = 4  # activations of graphs for CPUs are float32
ARENA = (
    1.15  # tensors, and what ONNX Runtime takes beside them, relative to tensors; fitted to peaks
)
HIDDEN_ROWS = 8  # rows of the hidden size that are alive in a layer, for each token
INNER_ROWS = 3  # rows of the feed-forward size
BYTES_PER_WEIGHT = {"fp32": 4.0, "fp16": 2.0, "w8a8": 1.0, "int8": 1.0, "int4": 0.56, "q4": 0.56}
"""Bytes of a weight in a graph that is still to be exported, scales included."""

INTEGER_BYTES = {"I32": 4, "U32": 4, "U8": 1, "I8": 1, "I64": 8}
"""Bytes of stored integers, by the names of their types in safetensors."""


class DeclaredNode(NamedTuple):
    """An input or output of a graph, as a session of ONNX Runtime describes it."""

    name: str
    type: str
    shape: tuple[int | str, ...]


def plan_engine(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    """Return the memory of the engine.

    Raises:
        CheckpointError: the model's files are broken, or its family is unknown.
        ConfigError: the cache is too small to be of use.
    """
    settings: EngineSettings = context.settings or EngineSettings()
    checkpoint = context.files
    is_export = kind_of(checkpoint) == "weights"
    layout = None
    if is_export or not checkpoint.is_preview:
        layout = present(checkpoint, settings.precision, settings.variant)
    if layout is None:
        return _planned_export(checkpoint, settings, load)
    graph, header = layout.decoder, read_header(layout.decoder.file)
    token_bytes = cached_token_bytes(graph, _nodes(header.inputs), _nodes(header.outputs))
    longest = longest_sequence(layout, settings, token_bytes)
    capacity = cache_capacity(settings, token_bytes, longest)
    limits = _limits(header, settings, longest, capacity, layout.precision)
    num_bytes = file_bytes(graph.file, header)
    weights = MemoryNeed(name="weights", num_bytes=num_bytes, detail=f"{layout.precision}, decoder")
    needs = [weights, *_embeddings(layout), _cache(settings, limits, token_bytes, load)]
    needs.append(_step(checkpoint, limits, load))
    kind, number = device_of(settings)
    return MemoryPlan(
        needs=tuple(needs),
        device=kind if kind == "cpu" else f"{kind}:{number}",
        precision=layout.precision,
        limits=limits,
        modules=MODULES,
        warm_up=products.form if kind == "cpu" else None,
    )


def plan_encoder(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    """Return the memory of the encoder.

    Raises:
        CheckpointError: the model's files are broken, or its family is unknown.
    """
    settings: EncoderSettings = context.settings or EncoderSettings()
    kind, number = device_of(settings)
    found = tower_of(context, settings)
    precision: str
    num_bytes: float
    if isinstance(found, VisionGraph):
        header = read_header(found.file)
        precision = found.precision or ""
        num_bytes = file_bytes(found.file, header)
    else:
        precision = found or "w8a8"
        num_bytes = _tower_parameters(context.files) * _weight_bytes(precision)
    detail = ", ".join(filter(None, (precision, "vision tower")))
    needs = [MemoryNeed(name="weights", num_bytes=int(num_bytes), detail=detail)]
    if load.slots:
        needs.append(_images(context.files, settings, load))
    return MemoryPlan(
        needs=tuple(needs),
        device=kind if kind == "cpu" else f"{kind}:{number}",
        precision=precision,
        modules=("onnxruntime", "vlmkit_onnx.build"),
    )


def file_bytes(file: Path, header: GraphHeader) -> int:
    """Return the bytes of a graph's file, and of the tensors in other files that it names."""
    inner = file.stat().st_size
    return inner + sum(tensor.num_bytes for tensor in header.external)


def _nodes(declared: Mapping[str, Any]) -> dict[str, DeclaredNode]:
    kinds = {"float32": "float"}
    return {
        name: DeclaredNode(
            name, f"tensor({kinds.get(info.element_type, info.element_type)})", info.shape or ()
        )
        for name, info in declared.items()
    }


def _limits(
    header: GraphHeader, settings: EngineSettings, longest: int, capacity: int, precision: str
) -> EngineLimits:
    vocab = (header.outputs["logits"].shape or (0,))[-1] if "logits" in header.outputs else 0
    return EngineLimits(
        vocab_size=vocab if isinstance(vocab, int) else 0,
        max_sequence_tokens=min(longest, capacity - 1),
        max_sequences=settings.max_sequences,
        capacity_tokens=capacity,
        max_chunk_tokens=settings.max_chunk_tokens,
        precision=precision,
    )


def _embeddings(layout: Layout) -> list[MemoryNeed]:
    """Return the memory of the embeddings: a table is mapped, and rows are read as needed."""
    if layout.embeddings is None:
        return []
    num_bytes = layout.embeddings.file.stat().st_size
    if hasattr(layout.embeddings, "tensor"):
        return [MemoryNeed(name="embeddings", num_bytes=0, detail="read from the file row by row")]
    return [MemoryNeed(name="embeddings", num_bytes=num_bytes, detail="a graph")]


def _cache(
    settings: EngineSettings, limits: EngineLimits, token_bytes: int, load: PlannedLoad
) -> MemoryNeed:
    """Return the memory of keys and values: on a CPU, only written tokens are resident."""
    num_tokens = min(_context(limits, load) * load.num_sequences, limits.capacity_tokens)
    more = ""
    if device_of(settings) != CPU:
        num_tokens, more = (limits.max_sequence_tokens + 1) * limits.max_sequences, ", at once"
    return MemoryNeed(
        name="KV cache",
        num_bytes=num_tokens * token_bytes,
        detail=f"{token_bytes:,} bytes per token, {num_tokens:,} tokens{more}",
        token_bytes=token_bytes,
    )


def _step(checkpoint: Checkpoint, limits: EngineLimits, load: PlannedLoad) -> MemoryNeed:
    """Return the memory of a chunk: rows of a layer, scores of attention, and logits."""
    text = _text_config(checkpoint)
    context = _context(limits, load)
    chunk = min(load.max_step_tokens, limits.max_chunk_tokens, context)
    per_token = HIDDEN_ROWS * text["hidden_size"] + INNER_ROWS * text["intermediate_size"]
    scores = text["num_attention_heads"] * context
    rows = chunk * (per_token + scores) + limits.max_sequences * limits.vocab_size
    return MemoryNeed(
        name="largest step",
        num_bytes=rows * FLOAT_BYTES,
        detail=f"{chunk:,} tokens of a prompt",
    )


def _images(checkpoint: Checkpoint, settings: EncoderSettings, load: PlannedLoad) -> MemoryNeed:
    """Return the memory of the largest call of the tower."""
    tower = _vision_config(checkpoint)
    pixels = [array for slot in load.slots for array in slot.inputs.values()]
    largest = max(pixels, key=lambda array: prod(array.shape))
    num_pictures = min(settings.max_batch_images, max(load.num_sequences, _num_pictures(largest)))
    patches = _num_patches(largest, tower.get("patch_size") or 14)
    per_patch = HIDDEN_ROWS * tower["hidden_size"] + INNER_ROWS * tower["intermediate_size"]
    scores = tower["num_attention_heads"] * patches
    num_bytes = int(ARENA * num_pictures * patches * (per_patch + scores)) * FLOAT_BYTES
    return MemoryNeed(
        name="largest image batch",
        num_bytes=num_bytes + num_pictures * prod(largest.shape) * FLOAT_BYTES,
        detail=f"{num_pictures} pictures of {patches:,} patches at once",
    )


def _num_pictures(array: Any) -> int:
    """Return the pictures of an image's pixels ``[(1,) pictures, channels, height, width]``."""
    return prod(array.shape[:-3]) if len(array.shape) >= 4 else 1


def _num_patches(array: Any, patch_size: int) -> int:
    """Return the patches of one picture; a processor may have cut it into rows of patches."""
    if len(array.shape) < 3:
        return int(array.shape[0])
    height, width = (int(size) for size in array.shape[-2:])
    return max(1, height // patch_size) * max(1, width // patch_size)


def _planned_export(
    checkpoint: Checkpoint, settings: EngineSettings, load: PlannedLoad
) -> MemoryPlan:
    """Return the memory of graphs that do not exist yet, from the configuration."""
    text = _text_config(checkpoint)
    precision = settings.precision or default_precision(checkpoint)
    if precision == "stored":
        num_bytes = _stored_bytes(checkpoint, text["vocab_size"] * text["hidden_size"])
    else:
        num = _num_weights(checkpoint) - _tower_parameters(checkpoint)
        num_bytes = int(num * _weight_bytes(precision))
    token_bytes = 2 * FLOAT_BYTES * text["num_hidden_layers"] * text["kv_width"]
    if precision == "fp16":
        token_bytes //= 2
    longest = settings.max_sequence_tokens or text["max_position_embeddings"]
    capacity = cache_capacity(settings, token_bytes, longest)
    limits = EngineLimits(
        vocab_size=text["vocab_size"],
        max_sequence_tokens=min(longest, capacity - 1),
        max_sequences=settings.max_sequences,
        capacity_tokens=capacity,
        max_chunk_tokens=settings.max_chunk_tokens,
        precision=described(precision),
    )
    weights = MemoryNeed(
        name="weights",
        num_bytes=num_bytes,
        detail=f"{described(precision)}, estimated: the graphs are still to be exported",
    )
    cache = _cache(settings, limits, token_bytes, load)
    return MemoryPlan(
        needs=(weights, cache, _step(checkpoint, limits, load)),
        precision=described(precision),
        limits=limits,
        modules=MODULES,
    )


def _num_weights(checkpoint: Checkpoint) -> int:
    if weight_files.gguf_file(checkpoint) is None:
        return weights_of(checkpoint).num_parameters
    from vlmkit_quantized import formats  # imports NumPy

    return formats.summary_of(checkpoint).num_weights


def _stored_bytes(checkpoint: Checkpoint, num_embeddings: int) -> int:
    """Return about the bytes of a graph with the integers of a checkpoint, by its headers.

    Integers stay, and the scales of their blocks take a quarter of them. Floats become float32. The
    embeddings are not in the graph, unless they are its head, too.
    """
    text = checkpoint.answering.get("text_config")
    configs = (checkpoint.answering, text if isinstance(text, Mapping) else {})
    is_tied = any(config.get("tie_word_embeddings") is True for config in configs)
    if (gguf := weight_files.gguf_file(checkpoint)) is not None:
        num = _num_weights(checkpoint)
        share = 1 if is_tied else 1 - num_embeddings / num
        return int(gguf.stat().st_size * share * 9 / 8)  # scales of 32 bits in place of 16
    counts = weights_of(checkpoint).num_by_dtype
    integers = sum(num * INTEGER_BYTES.get(dtype, 0) for dtype, num in counts.items())
    floats = sum(num for dtype, num in counts.items() if dtype not in INTEGER_BYTES)
    floats -= _tower_parameters(checkpoint) + (0 if is_tied else num_embeddings)
    return integers * 5 // 4 + max(0, floats) * FLOAT_BYTES


def _weight_bytes(precision: str) -> float:
    return BYTES_PER_WEIGHT.get(precision, FLOAT_BYTES)


def _tower_parameters(checkpoint: Checkpoint) -> int:
    """Return about how many weights a vision tower has, by its configuration; 0 without one."""
    tower = _vision_config(checkpoint)
    width, inner = tower["hidden_size"], tower["intermediate_size"]
    return tower["num_hidden_layers"] * width * (4 * width + 2 * inner)


def _context(limits: EngineLimits, load: PlannedLoad) -> int:
    longest = limits.max_sequence_tokens
    return min(load.context_tokens or longest, longest)


def _text_config(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the sizes of a decoder, by the names of transformers."""
    config = checkpoint.answering
    found = config.get("text_config")
    sizes = _sizes(found if isinstance(found, dict) else config)
    heads = sizes["num_attention_heads"] or 1
    width = sizes["head_dim"] or sizes["hidden_size"] // heads
    sizes["kv_width"] = width * (sizes["num_key_value_heads"] or heads)
    sizes["max_position_embeddings"] = sizes["max_position_embeddings"] or 4096
    return sizes


def _vision_config(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the sizes of a vision tower; zeros without one."""
    found = checkpoint.answering.get("vision_config")
    return _sizes(found if isinstance(found, dict) else {})


ALIASES = {
    "hidden_size": ("hidden_size", "embed_dim", "n_embd"),
    "intermediate_size": ("intermediate_size", "ffn_dim"),
    "num_hidden_layers": ("num_hidden_layers", "depth", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "num_heads", "n_head"),
    "num_key_value_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "patch_size": ("patch_size",),
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("max_position_embeddings",),
}


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    sizes = {}
    for name, aliases in ALIASES.items():
        values = (config.get(alias) for alias in aliases)
        sizes[name] = next((value for value in values if isinstance(value, int)), 0)
    sizes["intermediate_size"] = sizes["intermediate_size"] or 4 * sizes["hidden_size"]
    return sizes
