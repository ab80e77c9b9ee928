"""Finds the module of a model that each tensor of its files belongs to, before weights are read.

Follows the names by which transformers renames and merges weights while it loads them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from vlmkit_quantized.formats import IntegerLayer
from vlmkit_torch.model.nesting import decoder_of

SUFFIX = ".weight"


@dataclass(frozen=True, slots=True)
class Owner:
    """The module that a tensor belongs to.

    Attributes:
        path: of the module.
        module: that the tensor belongs to.
        part: of the model: ``decoder``, ``head``, or ``tower`` for all that is neither.
        is_merged: whether the tensor becomes a part of a larger one.
        is_tied: whether it is a head whose weight is the embedding.
    """

    path: str
    module: nn.Module
    part: str
    is_merged: bool
    is_tied: bool


def owners_of(names: Iterable[str], model: PreTrainedModel) -> Mapping[str, Owner]:
    """Return the module of each tensor that a model has.

    Args:
        names: of the tensors in a plain checkpoint.
        model: the model, without numbers.
    """
    conversions = get_model_conversion_mapping(model)
    renamings = [one for one in conversions if isinstance(one, WeightRenaming)]
    converters = [one for one in conversions if isinstance(one, WeightConverter)]
    prefix, known = model.base_model_prefix, model.state_dict()
    own = set(decoder_of(model).modules())
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    is_tied = head is not None and ties_head(model)
    found = {}
    for name in names:
        renamed, merged_by = rename_source_key(name, renamings, converters, prefix, known)
        if renamed not in known:
            continue
        path = renamed.rpartition(".")[0]
        module = model.get_submodule(path)
        part = "head" if module is head else "decoder" if module in own else "tower"
        is_tied_head = part == "head" and is_tied
        found[name] = Owner(path, module, part, merged_by is not None, is_tied_head)
    return found


def ties_head(model: PreTrainedModel) -> bool:
    """Return whether the head of a model is its embedding."""
    config: Any = model.config
    parts = (config, config.get_text_config())
    return any(getattr(part, "tie_word_embeddings", False) is True for part in parts)


def modules_of(
    layers: Mapping[str, IntegerLayer], model: PreTrainedModel, also: Collection[str] = ()
) -> dict[str, str]:
    """Return the path of the linear layer of each weight, of those that a model has.

    Args:
        layers: the layers, by the names of their weights in a plain checkpoint.
        model: the model, without numbers.
        also: parts of the model beside its decoder.
    """
    found = {}
    for name, owner in owners_of(layers, model).items():
        layer, module = layers[name], owner.module
        is_linear = type(module) is nn.Linear and name.endswith(SUFFIX) and not owner.is_merged
        if not is_linear or not (owner.part == "decoder" or owner.part in also):
            continue
        if module.weight.shape == (layer.rows, layer.columns):
            found[name] = owner.path
    return found
