"""Refuses checkpoints that this plugin cannot run, before anything heavy is imported.

Reads ``config.json``, names of files, and the source of the installed transformers. What shows only
in a loaded model, such as an unknown argument of its attention, is refused while it loads.
"""

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vlmkit.kit import weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import Objection
from vlmkit.plugins.registry import KindProviders
from vlmkit_torch.interfaces.kinds import TORCH_WEIGHTS
from vlmkit_torch.support import quantization, transformers_source
from vlmkit_torch.support.transformers_source import ANOTHER

NEEDS = {"torch": (2, 6), "transformers": (5, 20), "safetensors": (0, 8)}
ATTENTION_TYPES = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "attention", "hybrid"}
)
STATE_TYPES = frozenset({"linear_attention", "conv", "mamba", "hybrid"})
OTHER_TYPES = frozenset({"mlp", "moe", "dense", "sparse"})
LAYER_TYPES = ATTENTION_TYPES | STATE_TYPES | OTHER_TYPES

MAMBA_ALONE = "decoders of Mamba layers alone, without attention,"
DRAFTERS = "models that draft for another, whose keys and values they read,"
ASKING = "features of a picture that depend on the question, which its Q-Former reads,"
PLACING = "features of a picture that a decoder itself puts among its tokens"
ENDING = "questions behind which a processor writes a token of its own"

# Families that no key of config.json identifies.
FAMILIES = {
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), MAMBA_ALONE),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), DRAFTERS),
    "blip": "layers in which a decoder looks at a picture by cross-attention",
    "chameleon": ENDING,
    "diffusion_gemma": "models of diffusion, which write all tokens of a block at once,",
    "fuyu": ENDING,
    "git": PLACING,
    "instructblip": ASKING,
    "instructblipvideo": ASKING,
    "jamba": "layers of Mamba 1, which cannot read a prompt in chunks,",
    "kosmos-2": PLACING,
    "kosmos-2.5": PLACING,
    "minicpmv4_7": "prompts of several pictures, which it reads otherwise than one by one,",
    "moshi": "models that listen while they speak",
    "pi0": "models of actions, which write no text,",
    "pp_chart2table": "pictures whose places in a prompt a template alone writes",
    "shieldgemma2": "models that judge a picture, and write no text,",
}

# Unsupported layer types, by the family's name for them.
LAYER_REASONS = {
    "minimax_m3_sparse": "sparse attention with an indexer",
    "reference_sliding_attention": "a window over an answer, and none over its prompt",
    "hybrid_sliding": "convolutions beside attention with a window",
}

# Names of classes of models that were trained for another task than to continue a text.
OTHER_TASKS = re.compile(
    r".*For(Sequence|Token|Image|Audio|Video)Classification|.*ForQuestionAnswering|.*ForMaskedLM"
)

TIMM_TOWERS = frozenset({"timm_wrapper", "timm_backbone", "gemma3n_vision"})
# Families whose config.json need not state the tower.
TIMM_FAMILIES = frozenset({"fast_vlm", "perception_lm", "gemma3n"})

# Families whose cross-attention to images is supported.
CROSS_ATTENTION = frozenset({"mllama"})

# Keys of config.json that only families with an unsupported mechanism have.
MECHANISMS = {
    "cross_attention_layers": "cross-attention to image features",
    "cross_layer_interval": "cross-attention to image features",
    "add_cross_attention": "cross-attention",
    "index_topk": "sparse attention with an indexer",
    "adapter_reduction_factor": "an adapter for each language, one of which must be chosen,",
    "block_types": "a recurrence of linear units with gates (RG-LRU)",
    "H_cycles": "running through the same layers in cycles",
    "keep_window_size": "a mask that depends on the values",
    "lambda_std_dev": "differential attention",
    "linear_attn_alpha_factor": "lightning attention",
    "n_mamba_heads": "attention whose weights several layers share",
    "num_hashes": "attention among tokens of like hashes",
    "patching_mode": "reading bytes in patches, with an encoder of its own,",
    "prompt_types": "a learned prompt before each text",
    "qk_dim_factor": "the memory of an xLSTM",
    "rescale_every": "the recurrence of RWKV",
}

# Values in a tower's configuration that make its features random.
RANDOM_FEATURES = {
    ("tokenize_function", "gumbel_argmax"): "features of a picture that are drawn at random"
}

EXPORT = "vlmkit_onnx.json"  # in a folder that `vlmkit export` wrote


def why_not() -> str | None:
    """Return why this plugin cannot run here; None if it can."""
    for name, wanted in NEEDS.items():
        if importlib.util.find_spec(name) is None:
            return Objection(f"{name} is not installed", hint=install_command("vlmkit-torch"))
        version = importlib.metadata.version(name)
        if release_of(version) < wanted:
            return Objection(
                f"{name} {version} found, {'.'.join(map(str, wanted))} needed",
                hint=install_command("vlmkit-torch"),
            )
    return None


def release_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def engine_cannot_serve(
    checkpoint: Checkpoint, providers: KindProviders | None = None
) -> str | None:
    """Return why the engine cannot run this checkpoint; None if it probably can.

    Args:
        checkpoint: the files.
        providers: the readers of weights among them; None means those of this plugin.
    """
    config = checkpoint.config
    if reason := _files_reason(checkpoint, providers):
        return reason
    if config.get("is_encoder_decoder"):
        return Objection("encoder-decoder models are not supported", hint=ANOTHER)
    if reason := FAMILIES.get(checkpoint.model_type):
        return Objection(f"{reason} are not supported", hint=ANOTHER)
    for part in _parts(checkpoint.answering):
        for key, mechanism in MECHANISMS.items():
            is_known = key == "cross_attention_layers" and checkpoint.model_type in CROSS_ATTENTION
            if part.get(key) and not is_known:
                return Objection(f"{mechanism} is not supported", hint=ANOTHER)
        for layer_type in part.get("layer_types") or ():
            if reason := layer_objection(layer_type):
                return reason
    *_, decoder = _parts(checkpoint.answering)
    return transformers_source.code_objection(str(decoder.get("model_type", "")))


def layer_objection(name: str) -> Objection | None:
    """Return why layers of a type are not supported; None if they are."""
    if name in LAYER_TYPES:
        return None
    what = f" ({LAYER_REASONS[name]})" if name in LAYER_REASONS else ""
    return Objection(f"layer type {name!r}{what} is not supported", hint=ANOTHER)


def encoder_cannot_serve(
    checkpoint: Checkpoint, providers: KindProviders | None = None
) -> str | None:
    """Return why the vision encoder cannot run this checkpoint; None if it probably can."""
    reason = _files_reason(checkpoint, providers)
    if reason := reason or weight_files.objection_to_pictures(checkpoint):
        return reason
    has_tower = isinstance(checkpoint.answering.get("vision_config"), Mapping)
    if not has_tower and not transformers_source.takes_images(checkpoint.model_type):
        return weight_files.absent_tower(checkpoint)
    return _randomness_reason(checkpoint)


def _randomness_reason(checkpoint: Checkpoint) -> str | None:
    """Return why a tower computes random features; None if it does not."""
    tower = checkpoint.answering.get("vision_config") or {}
    for (key, value), what in RANDOM_FEATURES.items():
        if tower.get(key) == value:
            return Objection(
                f"{what} (vision_config.{key} is {value!r}) are not supported",
                hint='media_encoder.use = "none" serves its text',
            )
    return None


def _files_reason(checkpoint: Checkpoint, providers: KindProviders | None) -> str | None:
    return (
        _graphs_reason(checkpoint)
        or _absence_reason(checkpoint)
        or _family_reason(checkpoint)
        or _task_reason(checkpoint)
        or _tower_reason(checkpoint)
        or _weights_reason(checkpoint, providers)
    )


def _absence_reason(checkpoint: Checkpoint) -> Objection | None:
    """Return why weights seem incomplete; the reader examines those of a GGUF file."""
    if weight_files.gguf_file(checkpoint) is not None:
        return None
    return weight_files.objection(checkpoint)


def _weights_reason(checkpoint: Checkpoint, providers: KindProviders | None) -> str | None:
    """Return why no reader reads the weights; None if one does, or they are not quantized."""
    own = quantization.objection(checkpoint)
    if own is None or providers is None:
        return own
    reasons = providers(TORCH_WEIGHTS).objections(checkpoint)
    if None in reasons.values():
        return None
    others = [f"{name}: {why}" for name, why in reasons.items() if name not in quantization.READERS]
    return Objection(f"{own} ({'; '.join(others)})", hint=own.hint) if others else own


def _graphs_reason(checkpoint: Checkpoint) -> str | None:
    """Return an objection if there are graphs instead of weights."""
    if not checkpoint.has(EXPORT) or checkpoint.has("model*.safetensors"):
        return None
    return Objection(
        "it is an export of ONNX graphs, which hold its weights", hint="name the model it is of"
    )


def _family_reason(checkpoint: Checkpoint) -> str | None:
    """Return why the family is unknown; None if it is known."""
    model_type = checkpoint.model_type
    if not checkpoint.has("config.json"):
        return Objection("config.json is missing", hint="fetch it, too")
    if not model_type:
        return Objection(
            "config.json names no 'model_type'",
            hint="fetch the model in the form of transformers, whose config.json has one",
        )
    if transformers_source.is_known(model_type):
        return None
    if "auto_map" in checkpoint.config:
        return Objection(
            f"model type {model_type!r} is defined by code in the checkpoint, which is never run",
            hint="there may be a conversion of it to a family that transformers defines",
        )
    return Objection(
        f"model type {model_type!r} is not one that the installed transformers defines",
        hint="a later vlmkit may know it, or the name is wrong",
    )


def _task_reason(checkpoint: Checkpoint) -> str | None:
    """Return an objection if the model was trained for another task than text."""
    names = checkpoint.config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    if not isinstance(first, str) or OTHER_TASKS.fullmatch(first) is None:
        return None
    return Objection(
        f"it is a {first!r}, which generates no text",
        hint="load the model that it was made from",
    )


def _tower_reason(checkpoint: Checkpoint) -> str | None:
    """Return an objection if a tower needs packages that are not installed."""
    tower = checkpoint.answering.get("vision_config")
    kind = tower.get("model_type") if isinstance(tower, Mapping) else None
    is_timm = kind in TIMM_TOWERS or (kind is None and checkpoint.model_type in TIMM_FAMILIES)
    absent = [name for name in ("timm", "torchvision") if not quantization.is_installed(name)]
    if not is_timm or not absent:
        return None
    return Objection(
        f"its image tower is one of timm, which needs torchvision, and {' and '.join(absent)} must "
        "be installed",
        hint=f"{install_command('timm')}, which brings torchvision: take the build for the torch "
        "at hand",
    )


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the configurations that describe the decoder."""
    yield config
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(part := config.get(key), Mapping):
            yield part
