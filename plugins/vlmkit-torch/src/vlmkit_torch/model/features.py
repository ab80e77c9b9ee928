"""Passes image features to a family's merging code, in the container that it expects.

Families expect a list of rows or one tensor. The caller tries each form once and stores the one
that works.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Array, MediaSlot

DEEPSTACK = "deepstack."  # extra rows of the n-th level
DEEPSTACK_AT = "deepstack_at."  # extra rows for a numbered layer
MARKS = "visual_indicator_features"  # rows of tokens around an image, the same for all (Ovis2)


class FeatureForm(Enum):
    """The container in which a family expects the rows of all images."""

    LIST = "a list of [tokens, hidden]"
    TENSOR = "[1, tokens, hidden]"


@dataclass
class FeatureOutput(BaseModelOutputWithPooling):
    """Replaces the output of a family's own encoder for its merging code."""

    deepstack_features: Any = None
    visual_indicator_features: Any = None
    qformer_outputs: Any = None  # passed on by a family, and never read
    vision_outputs: Any = None
    router_logits: Any = None


def to_tensor(array: Array, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return any array as a tensor on a device; floats are cast to ``dtype``."""
    tensor = array if isinstance(array, torch.Tensor) else torch.utils.dlpack.from_dlpack(array)
    if dtype is not None and tensor.is_floating_point():
        return tensor.to(device=device, dtype=dtype)
    return tensor.to(device)


def compose(
    form: FeatureForm,
    slots: Sequence[MediaSlot],
    features: Mapping[int, MediaFeatures],
    device: torch.device,
    dtype: torch.dtype,
) -> FeatureOutput:
    """Return the rows of all images in order, with zeros for absent features."""

    def rows(name: str) -> torch.Tensor:
        present = {i: f.extra[name] if name else f.embeddings for i, f in features.items()}
        width = next(iter(present.values())).shape[-1]
        return torch.cat(
            [
                to_tensor(present[i], device, dtype)
                if i in present
                else torch.zeros(slot.num_features, width, device=device, dtype=dtype)
                for i, slot in enumerate(slots)
            ]
        )

    main = rows("")
    wrapped: Any = [main] if form is FeatureForm.LIST else main[None]
    extra = next(iter(features.values())).extra
    levels = sorted((n for n in extra if n.startswith(DEEPSTACK)), key=_number)
    layers = sorted((n for n in extra if n.startswith(DEEPSTACK_AT)), key=_number)
    deepstack: list[Any] = [[rows(name)] for name in levels]
    deepstack += [(_number(name), [rows(name)]) for name in layers]
    marks = to_tensor(extra[MARKS], device, dtype) if MARKS in extra else None
    return FeatureOutput(
        pooler_output=wrapped,
        last_hidden_state=main,
        deepstack_features=deepstack or None,
        visual_indicator_features=marks,
    )


def blank(slots: Sequence[MediaSlot], like: torch.Tensor) -> FeatureOutput:
    """Return rows of zeros for all images, as wide as ``like``."""
    count = sum(slot.num_features for slot in slots)
    return FeatureOutput(pooler_output=like.new_zeros(1, count, like.shape[-1]))


def _number(name: str) -> int:
    return int(name.rpartition(".")[2])
