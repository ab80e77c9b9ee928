"""Sequences as the pipeline would make them, for tests that have no pipeline."""

import secrets
from collections.abc import Iterable, Sequence as Seq

from vlmkit.prompt import Prompt, Span
from vlmkit.sampling import SamplingParams
from vlmkit.sequence import Sequence


def new_sequence(
    prompt: Prompt | Seq[int] = (0,),
    *,
    params: SamplingParams | None = None,
    output_ids: Iterable[int] = (),
    max_tokens: int = 16,
    seed: int = 0,
    eos_ids: Iterable[int] = (),
    banned_ids: Iterable[int] = (),
    tenant: str = "",
    priority: int = 0,
    atomic_spans: Iterable[Span] = (),
) -> Sequence:
    """Return a sequence with an id of its own.

    Args:
        prompt: a prompt, or the token ids of one without images.
        params: greedy when None.
        output_ids: tokens that it has generated already.

    The others are fields of :class:`vlmkit.sequence.Sequence`.
    """
    return Sequence(
        id=f"test-{secrets.token_hex(4)}",
        prompt=prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt)),
        params=params or SamplingParams(),
        seed=seed,
        max_tokens=max_tokens,
        eos_ids=frozenset(eos_ids),
        banned_ids=tuple(banned_ids),
        tenant=tenant,
        priority=priority,
        atomic_spans=tuple(atomic_spans),
        output_ids=list(output_ids),
    )
