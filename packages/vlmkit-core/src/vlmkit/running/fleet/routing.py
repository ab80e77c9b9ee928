"""Which worker answers a request: a pure function of what each holds and has to do.

A token that a worker would compute again counts as several that wait. So a conversation stays with
the worker that holds it, unless the queue there is much longer than elsewhere. Rendezvous hashing
makes one worker the favourite of each conversation, the same at every gateway. It decides where
little is held, and counts more at gateways that do not learn from each other what workers hold. No
worker may have far more open requests than the mean.
"""

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass

MAX_LOAD = 1.25
"""The most open requests of a worker, as a multiple of the mean (consistent hashing with bounded
loads), beside :data:`SPARE_REQUESTS`."""
SPARE_REQUESTS = 4
"""So many more are allowed, since the numbers of a few requests say little."""
COMPUTED_WEIGHT = 16
"""What a token that is computed again counts, in tokens that wait. Moving a conversation costs
cached tokens on two workers, and later moves; `benchmarks/routing_policies.py` compares."""
MIN_HELD_TOKENS = 64
"""Fewer tokens, such as the start of every conversation, save nothing. They count for the favourite
alone, so that a short conversation about a small image returns to its worker."""
SEQUENCE_TOKENS = 32
"""What a sequence that generates counts in a queue, in tokens of prompts."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could answer a request.

    Attributes:
        name: its address, which is the same at every gateway.
        held_tokens: tokens of the prompt that it holds already, in its prefix or feature cache.
        queue_tokens: tokens that it has to compute before.
        num_open: requests that it has not finished.
        is_full: whether it would refuse the request now.
    """

    name: str
    held_tokens: int = 0
    queue_tokens: int = 0
    num_open: int = 0
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen worker.

    Attributes:
        place: its index among the candidates.
        reason: why, for the log.
    """

    place: int
    reason: str


def choose(
    candidates: Seq[Candidate],
    affinity: bytes,
    prompt_tokens: int,
    *,
    are_estimates_shared: bool = True,
) -> Choice:
    """Return the worker for a request.

    Args:
        candidates: the workers that can be reached; at least one.
        affinity: selects the favourite: equal for requests that should meet.
        prompt_tokens: estimated number of tokens of the prompt.
        are_estimates_shared: whether ``held_tokens`` includes the prompts of other gateways.
            Without them, the whole prompt counts as saved once more by the favourite, so that
            gateways agree; with them, at most :data:`MIN_HELD_TOKENS` of it.
    """
    places = [i for i, each in enumerate(candidates) if not each.is_full]
    places = places or list(range(len(candidates)))
    weights = {i: rendezvous_weight(affinity, candidates[i].name) for i in places}
    favourite = max(places, key=weights.__getitem__)
    bonus = min(prompt_tokens, MIN_HELD_TOKENS) if are_estimates_shared else prompt_tokens

    def score(place: int) -> tuple[int, bytes]:
        candidate = candidates[place]
        saved = _held(candidate, prompt_tokens) + (bonus if place == favourite else 0)
        return COMPUTED_WEIGHT * saved - candidate.queue_tokens, weights[place]

    best = max(places, key=score)
    chosen = max(_within_bound(candidates, places), key=score)
    if chosen != best:
        return Choice(chosen, "bounded load")
    if _held(candidates[chosen], prompt_tokens):
        return Choice(chosen, "cached prompt")
    return Choice(chosen, "affinity" if chosen == favourite else "short queue")


def _held(candidate: Candidate, prompt_tokens: int) -> int:
    """Return how many tokens of the prompt a worker saves."""
    num_tokens = min(candidate.held_tokens, prompt_tokens)
    return num_tokens if num_tokens >= MIN_HELD_TOKENS else 0


def _within_bound(candidates: Seq[Candidate], places: Seq[int]) -> list[int]:
    """Return the places whose open requests, with this one, are within the bound.

    The one with the fewest always is.
    """
    mean = (sum(candidates[i].num_open for i in places) + 1) / len(places)
    bound = MAX_LOAD * mean + SPARE_REQUESTS
    return [i for i in places if candidates[i].num_open + 1 <= bound]


def rendezvous_weight(affinity: bytes, name: str) -> bytes:
    """Return the weight of a name for a key: the largest one is chosen (rendezvous hashing)."""
    return hashlib.blake2b(affinity + b"\0" + name.encode(), digest_size=8).digest()
