"""Which worker answers a request: a pure function of what each holds and has to do.

The score of a worker is the number of prompt tokens that it holds, minus the tokens in its queue.
If none holds anything, rendezvous hashing decides, so that the same conversation meets the same
worker however many gateways there are. No worker may be far above the mean load.
"""

import hashlib
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass

MAX_LOAD = 1.25
"""The most load of a worker, as a multiple of the mean (consistent hashing with bounded loads)."""
MIN_HELD_TOKENS = 64
"""Fewer tokens, such as the start of every conversation, save nothing."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could answer a request.

    Attributes:
        name: its address, which is the same at every gateway.
        held_tokens: tokens of the prompt that it holds already, in its prefix or feature cache.
        queue_tokens: tokens that it has to compute before.
        is_full: whether it would refuse the request now.
    """

    name: str
    held_tokens: int = 0
    queue_tokens: int = 0
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


def choose(candidates: Seq[Candidate], affinity: bytes, prompt_tokens: int) -> Choice:
    """Return the worker for a request.

    Args:
        candidates: the workers that can be reached; at least one.
        affinity: decides where nothing is known: equal for requests that should meet.
        prompt_tokens: estimated number of tokens of the prompt.
    """
    open_places = [i for i, each in enumerate(candidates) if not each.is_full]
    places = open_places or list(range(len(candidates)))
    held = {i: _held(candidates[i], prompt_tokens) for i in places}
    loads = {i: candidates[i].queue_tokens for i in places}
    weights = {i: _weight(affinity, candidates[i].name) for i in places}
    if not any(held.values()):
        chosen = max(_within_bound(loads, prompt_tokens), key=weights.__getitem__)
        is_first = chosen == max(places, key=weights.__getitem__)
        return Choice(chosen, "affinity" if is_first else "affinity, and bounded load")

    def score(place: int) -> tuple[int, bytes]:
        return held[place] - loads[place], weights[place]

    # A higher score than that of the least loaded worker implies the bound.
    chosen = max(places, key=score)
    return Choice(chosen, "cached prompt" if held[chosen] else "short queue")


def _held(candidate: Candidate, prompt_tokens: int) -> int:
    """Return how many tokens of the prompt a worker saves."""
    num_tokens = min(candidate.held_tokens, prompt_tokens)
    return num_tokens if num_tokens >= MIN_HELD_TOKENS else 0


def _within_bound(loads: Mapping[int, int], prompt_tokens: int) -> list[int]:
    """Return the places whose load with the request is at most :data:`MAX_LOAD` of the mean.

    The least loaded one always is.
    """
    mean = (sum(loads.values()) + prompt_tokens) / len(loads)
    bound = max(MAX_LOAD * mean, min(loads.values()) + prompt_tokens)
    return [i for i in loads if loads[i] + prompt_tokens <= bound]


def _weight(affinity: bytes, name: str) -> bytes:
    """Return the weight of a worker for a key, by rendezvous hashing."""
    return hashlib.blake2b(affinity + b"\0" + name.encode(), digest_size=8).digest()
