"""Sampled tokens and their log-probabilities. Plain values."""

import msgspec


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """A token and its log-probability; not tracked by the garbage collector for speed."""

    token_id: int
    logprob: float


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One chosen or scored token.

    Log-probabilities are those of the model's own distribution, before penalties, temperature and
    filters. They are set only if the request asks for them.

    Attributes:
        token_id: the token.
        logprob: its log-probability.
        top: the likeliest tokens at its position.
        rank: the rank of a scored token; 1 is the likeliest, and lower ids come first among equals.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[Logprob, ...] = ()
    rank: int | None = None
