"""Decompresses layers of compressed-tensors after loading.

transformers reads such weights as stored. The package decompresses them in a hook before the
model's first ``forward``. The engine never calls that method, because it runs decoder, head and
tower separately. Decompressed weights have the precision of the model. Activations stay quantized
if the checkpoint says so.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.support import compressed_tensors

HOOK = "ct_decompress_hook"  # the attribute of the model in which the package stores it


def ignore_plain_layers(checkpoint: Checkpoint, auto: Any, config: PretrainedConfig) -> None:
    """Add every layer that the files hold uncompressed to ``ignore`` of a configuration.

    The tool writes names of tensors in the files into ``ignore``. transformers compares them with
    names of its modules, which differ in most models with a tower.
    """
    stated = config.quantization_config
    with torch.device("meta"):
        model = auto.from_config(config)
    conversions = get_model_conversion_mapping(model)
    renamings = [one for one in conversions if isinstance(one, WeightRenaming)]
    converters = [one for one in conversions if isinstance(one, WeightConverter)]
    prefix, known = model.base_model_prefix, model.state_dict()
    ignored = list(stated.get("ignore") or ())
    for name in compressed_tensors.plain_weights(checkpoint):
        renamed, _ = rename_source_key(name, renamings, converters, prefix, known)
        ignored.append(renamed.removesuffix(".weight"))
    ignored += [name.removesuffix(".weight") for name in model.all_tied_weights_keys]
    config.quantization_config = {**stated, "ignore": ignored}


def decompress(model: PreTrainedModel) -> None:
    """Decompress the weights of a model in place; do nothing if it is not compressed."""
    hook = getattr(model, HOOK, None)
    if hook is None:
        return
    from compressed_tensors.compressors import decompress_module

    hook.remove()
    delattr(model, HOOK)
    for module in list(model.modules()):
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None or not isinstance(module, nn.Linear | nn.Embedding):
            continue
        has_activations = bool(scheme.input_activations or scheme.output_activations)
        decompress_module(module, leave_decompressed=has_activations)
        if has_activations and isinstance(module, nn.Linear):
            vars(module)["forward"] = partial(_by_token, module.forward)
    for weight in model.parameters():  # experts and some formats get the precision of their scales
        if weight.is_floating_point() and weight.dtype != torch.float32:
            weight.data = weight.data.to(model.config.dtype)


@contextmanager
def silenced() -> Iterator[None]:
    """Hide the package's progress bars and log lines while it loads a model."""
    from compressed_tensors.compressors.model_compressors import model_compressor
    from compressed_tensors.quantization.lifecycle import apply
    from loguru import logger

    logger.disable("compressed_tensors")
    bars = [(module, module.tqdm) for module in (apply, model_compressor)]
    for module, _ in bars:
        module.tqdm = _without_bar
    try:
        yield
    finally:
        for module, bar in bars:
            module.tqdm = bar
        logger.enable("compressed_tensors")


def _without_bar(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    return items


@contextmanager
def exact_activations(model: nn.Module) -> Iterator[None]:
    """Turn off quantization of activations, so that two ways of computing are comparable.

    Quantization may turn a difference in the last bit into one of a whole level.
    """
    quantized = [one for one in model.modules() if hasattr(one, "quantization_scheme")]
    for module in quantized:
        vars(module)["quantization_enabled"] = False
    try:
        yield
    finally:
        for module in quantized:
            del module.quantization_enabled


def _by_token(forward: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Return a layer's output with each row quantized separately.

    The package treats an array of two axes as one token, so that all rows would share a scale.
    """
    return forward(rows[None])[0] if rows.ndim == 2 else forward(rows)
