"""Loads a checkpoint for export: safetensors only, no remote code, no network, nothing missing.

Weights stay in the checkpoint's own type and in its mapped files: whoever needs them otherwise
converts them one module at a time.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch import refusal
from vlmkit_torch.reading import read_config, read_model

ATTENTION_TYPES = frozenset({"full_attention", "sliding_attention", "attention"})

# Keys of config.json that only families with such a mechanism have.
MECHANISMS = refusal.MECHANISMS | {
    "hidden_size_per_layer_input": "embeddings for each layer",
    "num_kv_shared_layers": "layers that share keys and values",
}


def load(checkpoint: Checkpoint) -> PreTrainedModel:
    """Return the model on the CPU, in the types of its files.

    Raises:
        CheckpointError: the family cannot be exported, or the checkpoint is broken.
        EngineError: there is not so much memory.
    """
    config = read_config(checkpoint)
    refuse_mechanisms(checkpoint.name, config.get_text_config().to_dict())
    return read_model(checkpoint, config, "auto")


def refuse_mechanisms(name: str, text_config: Mapping[str, Any]) -> None:
    """Refuse what a decoder's configuration shows to be out of reach.

    Raises:
        CheckpointError: the family needs something that the exported decoder cannot do.
    """
    for key, mechanism in MECHANISMS.items():
        if text_config.get(key):
            raise CheckpointError(
                f"model {name!r} of type {text_config.get('model_type')!r} cannot be exported: "
                f"it has {mechanism}"
            )
    for layer_type in text_config.get("layer_types") or ():
        if layer_type not in ATTENTION_TYPES | refusal.OTHER_TYPES:
            raise CheckpointError(
                f"model {name!r} of type {text_config.get('model_type')!r} cannot be exported: "
                f"it has layers of type {layer_type!r}"
            )
