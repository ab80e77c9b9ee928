"""Finds decoder and head inside a transformers model, and copies modules with one child replaced.

Copies are shallow: transformers is not patched, and no weight is copied. Runs no module.
"""

# ruff: noqa: SLF001 - copies are made of the insides of modules

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from vlmkit.errors import CheckpointError
from vlmkit_torch.support.transformers_source import attention_objection


def decoder_of(model: PreTrainedModel) -> Any:
    """Return a model's decoder: embeddings -> hidden states."""
    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    if not hasattr(decoder, "get_decoder"):
        return model.base_model  # some families name their head's matrix a decoder
    while decoder.get_output_embeddings() is not None:  # a whole causal LM inside a VLM
        decoder = decoder.model
    inner: Any = decoder.get_decoder()
    return inner if inner is not None else decoder


def head_of(model: PreTrainedModel, decoder: Any) -> Any:
    """Return a copy of a model that takes hidden states as ``inputs_embeds`` and gives logits.

    It applies every scaling and cap of the family, and has neither decoder nor towers.
    """
    whole = _causal_lm(model, decoder)
    has_tower = whole.base_model is not whole and hasattr(whole.base_model, "get_image_features")
    inner: Any = whole.base_model if has_tower else decoder
    return with_replaced(whole, inner, _PassThrough(inner))


def _causal_lm(model: PreTrainedModel, decoder: Any) -> Any:
    """Return the innermost module that computes logits from a decoder's hidden states.

    Usually the model itself; a few models contain a whole causal LM with its head.
    """
    found: Any = model
    if model.base_model is not model:
        return found
    inner: Any
    for inner in model.modules():
        has_head = isinstance(inner, PreTrainedModel) and inner.get_output_embeddings()  # type: ignore[no-untyped-call]
        if has_head and inner is not decoder and decoder in inner.modules():
            found = inner
    return found


def replace_attention(decoder: Any, implementation: str) -> None:
    """Switch the attention implementation of a decoder only.

    Raises:
        CheckpointError: the family's code does not allow another attention.
    """
    config = decoder.config
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    kept = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    decoder.set_attn_implementation({"": implementation, **kept})
    if config._attn_implementation != implementation:
        objection = attention_objection(config.model_type)
        raise CheckpointError(objection, hint=objection.hint)


def with_replaced(root: nn.Module, target: nn.Module, new: nn.Module) -> Any:
    """Return a copy of a module with one module inside it replaced."""
    return _with_child(root, _path_of(root, target), new)


def _path_of(root: nn.Module, target: nn.Module) -> str:
    for name, module in root.named_modules():
        if module is target:
            return str(name)
    raise ValueError("the module is not inside the root")


def _with_child(root: nn.Module, path: str, new: nn.Module) -> Any:
    """Copy the modules along ``path`` shallowly, with the last one replaced."""
    name, _, rest = path.partition(".")
    view = copy.copy(root)
    child = root._modules[name]
    view._modules = dict(root._modules)
    view._modules[name] = _with_child(child, rest, new) if rest and child is not None else new
    return view


class _PassThrough(nn.Module):
    """Replaces the base model and returns its input as the hidden states.

    It has the base model's attributes, such as a scale of logits, and none of its modules.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        own = vars(self)
        own.update({name: value for name, value in vars(base).items() if name not in own})

    def forward(self, *_: Any, inputs_embeds: Any, **__: Any) -> BaseModelOutputWithPast:
        return _Output(last_hidden_state=inputs_embeds)


class _Output(BaseModelOutputWithPast):
    """An output in which every further field that a family may read is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
