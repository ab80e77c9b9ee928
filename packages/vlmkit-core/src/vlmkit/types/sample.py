"""Sampled and scored tokens, with their log-probabilities. Plain values.

The engine loop creates them after each step. They reach callers in the chunks of a stream, and the
server encodes them as log-probabilities.
"""

import msgspec


class Logprob(
    msgspec.Struct,
    frozen=True,
    gc=False,
    array_like=True,
    forbid_unknown_fields=True,
    tag="logprob",
):
    """A likely token and its log-probability; not tracked by the garbage collector for speed.

    Attributes:
        token_id: the token.
        logprob: the natural logarithm of its probability.
    """

    token_id: int
    logprob: float


class Sample(
    msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag="sample"
):
    """One token that the sampler chose, or that the request gave to be scored.

    Log-probabilities are natural logarithms of the model's own distribution, before penalties,
    temperature and filters. Unless the request asks for them, only ``token_id`` is set.

    Attributes:
        token_id: the token.
        logprob: its log-probability.
        top: the likeliest tokens at its position, likeliest first; lower ids come first among
            equals. It need not contain the token.
        rank: the rank of a scored token, where 1 is the likeliest and lower ids come first among
            equals; None for a sampled token.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[Logprob, ...] = ()
    rank: int | None = None
