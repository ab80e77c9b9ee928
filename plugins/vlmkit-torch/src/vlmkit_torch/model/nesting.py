"""How transformers nests its modules: a decoder, a head, and copies with one child replaced.

Copies are shallow: nothing of transformers is patched, and no weight is copied. What the pieces are
good for is their users' business.
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
        return model.base_model  # some call the matrix of their head a decoder
    while decoder.get_output_embeddings() is not None:  # a whole causal LM inside a VLM
        decoder = decoder.model
    inner: Any = decoder.get_decoder()
    return inner if inner is not None else decoder


def head_of(model: PreTrainedModel, decoder: Any) -> Any:
    """Return a copy of a model that takes hidden states as ``inputs_embeds`` and gives logits.

    It has every scaling and cap of the family, and holds neither decoder nor towers.
    """
    whole = _causal_lm(model, decoder)
    sees = whole.base_model is not whole and hasattr(whole.base_model, "get_image_features")
    inner: Any = whole.base_model if sees else decoder
    return with_replaced(whole, inner, _Passage(inner))


def _causal_lm(model: PreTrainedModel, decoder: Any) -> Any:
    """Return the innermost module of a model that makes logits of a decoder's hidden states.

    Nearly always the model itself; a few hold a whole causal LM, head and all.
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
    """Switch a decoder's attention, and nothing else's.

    Raises:
        CheckpointError: the family's code does not let its attention be replaced.
    """
    config = decoder.config
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    kept = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    decoder.set_attn_implementation({"": implementation, **kept})
    if config._attn_implementation != implementation:
        objection = attention_objection(config.model_type)
        raise CheckpointError(objection, hint=objection.hint)


def with_replaced(root: nn.Module, target: nn.Module, new: nn.Module) -> Any:
    """Return a copy of a module with another in the place of one inside it."""
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


class _Passage(nn.Module):
    """Stands where the base model stands and returns its input as the hidden states.

    It has the base model's numbers, such as a factor of logits, and none of its modules.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        own = vars(self)
        own.update({name: value for name, value in vars(base).items() if name not in own})

    def forward(self, *_: Any, inputs_embeds: Any, **__: Any) -> BaseModelOutputWithPast:
        return _Output(last_hidden_state=inputs_embeds)


class _Output(BaseModelOutputWithPast):
    """An output of which every field that a family may ask for is there, though None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
