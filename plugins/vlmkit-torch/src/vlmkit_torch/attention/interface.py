"""The interface of attention functions that transformers calls, independent of the family.

Reads the arguments of a call and refuses unknown ones. Computes no attention.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import nn

from vlmkit.errors import CheckpointError

IGNORED = frozenset({"position_ids", "cache_position"})


class AttentionOptions(NamedTuple):
    """The arguments of one layer's attention besides queries, keys and values.

    Attributes:
        scale: of the scores; one over the square root of ``head`` unless the family passes one.
        window: the layer's window, if the family's code passes one.
        softcap: limit of the scores: they are squashed into plus or minus this.
        sinks: ``[heads]`` scores of the attention sinks.
    """

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


class Projections(NamedTuple):
    """Rotated queries and keys, and values, ``[rows, heads, seq, head]`` each."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class AttentionFunction(ABC):
    """An attention function to register with transformers."""

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """Return one layer's attention; called by transformers.

        Args:
            module: the family's attention module.
            query: ``[rows, heads, seq, head]``.
            key: ``[rows, kv_heads, seq, head]``.
            value: ``[rows, kv_heads, seq, value_head]``.
            attention_mask: must be None.
            options: further arguments; see :func:`read_options`.

        Returns:
            ``[rows, seq, heads, value_head]`` and None.

        Raises:
            CheckpointError: the model passes a mask or an unknown tensor.
        """
        found = read_options(query, attention_mask, options)
        return self._attend(module, Projections(query, key, value), found), None

    @abstractmethod
    def _attend(
        self, module: nn.Module, states: Projections, options: AttentionOptions
    ) -> torch.Tensor:
        """Return ``[rows, seq, heads, value_head]``."""


def read_options(
    query: torch.Tensor, mask: torch.Tensor | None, options: dict[str, Any]
) -> AttentionOptions:
    """Return the arguments that an attention function supports, by transformers' names.

    Args:
        query: ``[..., head]``.
        mask: must be None.
        options: all further arguments of the call. Unknown numbers and flags are ignored.

    Raises:
        CheckpointError: the model passes a mask or an unknown tensor, which would be ignored.
    """
    if mask is not None:
        raise CheckpointError("the model builds an attention mask of its own, not supported")
    scale, sinks = options.pop("scaling", None), options.pop("s_aux", None)
    for name, value in options.items():
        if isinstance(value, torch.Tensor) and name not in IGNORED:
            raise CheckpointError(f"the model's attention needs {name!r}, not supported")
    return AttentionOptions(
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        window=options.get("sliding_window") or None,
        softcap=options.get("softcap"),
        sinks=sinks,
    )
