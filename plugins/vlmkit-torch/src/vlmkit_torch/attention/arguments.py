"""What a family's code may hand to an attention function that knows nothing of the family."""

from typing import Any

import torch

from vlmkit.errors import CheckpointError

HARMLESS = frozenset({"position_ids", "cache_position"})


def refuse_unknown(mask: torch.Tensor | None, others: dict[str, Any]) -> None:
    """Refuse what would be ignored: a mask, and tensors that may be anything.

    Raises:
        CheckpointError: the model needs one of them.
    """
    if mask is not None:
        raise CheckpointError("the model builds an attention mask of its own, not supported")
    for name, value in others.items():
        if isinstance(value, torch.Tensor) and name not in HARMLESS:
            raise CheckpointError(f"the model's attention needs {name!r}, not supported")
