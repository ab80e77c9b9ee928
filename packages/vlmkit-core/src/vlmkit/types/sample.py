"""A chosen token, and what its request wants to know of it. Plain values."""

import msgspec


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """A token and its log-probability; there are millions, of no use to the garbage collector."""

    token_id: int
    logprob: float


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One chosen token.

    ``logprob`` and ``top`` describe the model's own distribution (before penalties, temperature
    and filters), and are filled only where the request asks for log-probabilities. ``rank`` is
    that of a token which was given, to be scored: 1 is the likeliest, of equals the lowest id.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[Logprob, ...] = ()
    rank: int | None = None
