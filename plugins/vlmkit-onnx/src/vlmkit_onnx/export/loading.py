"""Loads a checkpoint for export: safetensors only, no remote code, no network, nothing missing.

Weights stay in the checkpoint's own type and in its mapped files: whoever needs them otherwise
converts them one module at a time.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)
from transformers.utils import logging as transformers_logging

from vlmkit.checkpoint import Checkpoint
from vlmkit.errors import CheckpointError

ATTENTION_TYPES = frozenset({"full_attention", "sliding_attention", "attention"})
OTHER_TYPES = frozenset({"mlp", "moe", "dense", "sparse"})

# Keys of config.json that only families with such a mechanism have.
MECHANISMS = {
    "hidden_size_per_layer_input": "embeddings for each layer",
    "cross_attention_layers": "cross-attention to image features",
    "cross_layer_interval": "cross-attention to image features",
    "add_cross_attention": "cross-attention",
    "index_topk": "sparse attention with an indexer",
    "num_kv_shared_layers": "layers that share keys and values",
}


def load(checkpoint: Checkpoint) -> PreTrainedModel:
    """Return the model on the CPU, in the types of its files.

    Raises:
        CheckpointError: the family cannot be exported, or weights are absent, of the wrong shape
            or need what is not installed.
    """
    config = _read_config(checkpoint)
    refuse_mechanisms(checkpoint.name, config.get_text_config().to_dict())
    auto = _auto_class(checkpoint, config)
    try:
        with _without_bar():
            model, report = auto.from_pretrained(
                checkpoint.path,
                config=config,
                dtype="auto",
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:
        method = (checkpoint.config.get("quantization_config") or {}).get("quant_method")
        hint = f"it is quantized with {method!r}; export the model it was made from"
        raise CheckpointError(
            f"the weights of model {checkpoint.name!r} could not be loaded",
            hint=hint if method else "",
        ) from error
    _refuse_gaps(checkpoint, report)
    model.eval().requires_grad_(requires_grad=False)
    return model  # type: ignore[no-any-return]


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
        if layer_type not in ATTENTION_TYPES | OTHER_TYPES:
            raise CheckpointError(
                f"model {name!r} of type {text_config.get('model_type')!r} cannot be exported: "
                f"it has layers of type {layer_type!r}"
            )


def _read_config(checkpoint: Checkpoint) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            checkpoint.path, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        raise CheckpointError(
            f"config.json of model {checkpoint.name!r} is not one that transformers can read"
        ) from error
    return config


def _auto_class(checkpoint: Checkpoint, config: PretrainedConfig) -> Any:
    if config.is_encoder_decoder:
        raise CheckpointError(f"model {checkpoint.name!r} is an encoder-decoder, not supported")
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForImageTextToText
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    raise CheckpointError(
        f"model {checkpoint.name!r} of type {config.model_type!r} generates no text that "
        "transformers knows of"
    )


def _refuse_gaps(checkpoint: Checkpoint, report: dict[str, Any]) -> None:
    """Weights that were not in the files would be random: an answer of such a model is noise."""
    for kind, what in (("missing_keys", "lacks"), ("mismatched_keys", "has the wrong shape for")):
        if names := sorted(str(key) for key in report.get(kind) or ()):
            raise CheckpointError(
                f"model {checkpoint.name!r} {what} {len(names)} weights, such as {names[0]!r}"
            )


@contextmanager
def _without_bar() -> Iterator[None]:
    """Keep transformers' progress bar off the terminal: who exports shows the stages."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
