"""The arguments with which transformers calls an attention function, whatever the family."""

from typing import Any, NamedTuple

import torch

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
