"""Refuses checkpoints that cannot be exported, based on small files; imports nothing heavy.

``decoder_traits`` refuses what shows only in a loaded decoder, still before anything is exported.
"""

from collections.abc import Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import Objection, hint_of
from vlmkit_onnx.prompts.families import family_of
from vlmkit_torch.support import refusal

OTHERWISE = 'engine.use = "torch" may run it as it is'

ATTENTION_TYPES = frozenset({"full_attention", "sliding_attention", "attention"})

# Keys of config.json that only families with an unsupported mechanism have.
MECHANISMS = refusal.MECHANISMS | {
    "hidden_size_per_layer_input": "embeddings for each layer",
    "num_kv_shared_layers": "layers that share keys and values",
    "attn_temperature_tuning": "attention that is scaled by a token's place",
    "mamba_d_state": "recurrent layers",
    "mamba_d_conv": "recurrent layers",
}


def objection(checkpoint: Checkpoint) -> str | None:
    """Return why a checkpoint cannot be exported; None if it probably can."""
    if reason := refusal.engine_cannot_serve(checkpoint):
        return reason
    config = checkpoint.config
    text = config.get("text_config")
    reason = mechanism_of(text if isinstance(text, Mapping) else config) or _vision_reason(config)
    return Objection(f"it cannot be exported: {reason}", hint=OTHERWISE) if reason else None


def refuse(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that cannot be exported; see :func:`objection`.

    Raises:
        CheckpointError: with the reason.
    """
    if reason := objection(checkpoint):
        raise CheckpointError(f"model {checkpoint.name!r}: {reason}", hint=hint_of(reason))


def _vision_reason(config: Mapping[str, Any]) -> str | None:
    """Return why a family's handling of images cannot be exported; None if it can."""
    try:
        family_of(config)
    except CheckpointError as error:
        return str(error)
    return None


def mechanism_of(text_config: Mapping[str, Any]) -> str | None:
    """Return what in a decoder's configuration cannot be exported; None if everything can."""
    family = text_config.get("model_type")
    for key, mechanism in MECHANISMS.items():
        if text_config.get(key):
            return f"model type {family!r} has {mechanism}"
    for layer_type in text_config.get("layer_types") or ():
        if layer_type not in ATTENTION_TYPES | refusal.OTHER_TYPES:
            return f"model type {family!r} has layers of type {layer_type!r}"
    return None
