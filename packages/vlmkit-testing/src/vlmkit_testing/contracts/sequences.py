"""Sequences as a pipeline would create them, for tests without a pipeline."""

import dataclasses
import secrets
from collections.abc import Iterable, Sequence as Seq
from typing import Any

from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.types.sampling import SamplingParams


def new_sequence(
    prompt: Prompt | Seq[int] = (0,),
    *,
    params: SamplingParams | None = None,
    output_ids: Iterable[int] = (),
    **fields: Any,
) -> Sequence:
    """Return a sequence with an id of its own.

    Args:
        prompt: a prompt, or the token ids of one without images.
        params: greedy when None.
        output_ids: tokens that it has generated.
        **fields: other fields of :class:`vlmkit.interfaces.sequence.Sequence`.
    """
    return Sequence(
        id=f"test-{secrets.token_hex(4)}",
        prompt=prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt)),
        params=params or SamplingParams(),
        output_ids=list(output_ids),
        **({"seed": 0, "max_tokens": 16} | fields),
    )


class WatchedSequence(Sequence):
    """A sequence that supports weak references, to find what keeps an ended one."""

    @classmethod
    def of(cls, sequence: Sequence) -> "WatchedSequence":
        """Return an equal sequence."""
        fields = [field.name for field in dataclasses.fields(sequence) if field.init]
        return cls(**{name: getattr(sequence, name) for name in fields})
