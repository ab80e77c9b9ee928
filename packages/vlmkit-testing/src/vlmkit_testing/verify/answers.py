"""Checks that a runner answers alike without a cache, from the cache, and in a batch."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from vlmkit.interfaces.runner import Runner
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.request import Request

FOLLOW_UPS = ("", " Answer in one word.", " Say it in other words, and tell me why you think so.")


@dataclass(frozen=True, slots=True)
class Agreement:
    """How answers compare with those computed alone, without a cache.

    Attributes:
        way: ``cached`` or ``batch``.
        num_answers: compared answers.
        num_cached_tokens: prompt tokens that were found in the cache, over all of them.
        first_differences: for each answer that differs, its first token that does.
        is_promised: whether the engine claims that they never differ.
    """

    way: str
    num_answers: int
    num_cached_tokens: int
    first_differences: tuple[int, ...]
    is_promised: bool

    @property
    def agrees(self) -> bool:
        """Whether all tokens are equal."""
        return not self.first_differences

    @property
    def is_sound(self) -> bool:
        """Whether all tokens are equal, or the engine does not claim that they are."""
        return self.agrees or not self.is_promised


def agreements(
    runner: Runner, prompt: str, images: Seq[Image], *, max_tokens: int
) -> list[Agreement]:
    """Answer greedily: alone, again from the cache, and several prompts in one batch.

    Different tenants keep the comparisons, and the answers of a batch, out of each other's caches.
    """
    params = runner.facts.defaults.replaced({"temperature": 0.0, "max_tokens": max_tokens})
    requests = [
        Request(messages=[Message.of("user", f"{prompt}{text}", images)], params=params)
        for text in FOLLOW_UPS
    ]
    alone = [_of_tenant(request, f"alone {i}") for i, request in enumerate(requests)]
    wanted = [tokens for request in alone for tokens, _ in _answers(runner, [request])]
    cached = _answers(runner, alone[:1])
    batch = _answers(runner, [_of_tenant(r, f"batch {i}") for i, r in enumerate(requests)])
    is_promised = runner.facts.limits.is_batch_invariant
    return [
        _agreement("cached", cached, wanted[:1], is_promised),
        _agreement("batch", batch, wanted, is_promised),
    ]


def _of_tenant(request: Request, tenant: str) -> Request:
    return replace(request, tenant=f"vlmkit verify, {tenant}")


def _answers(runner: Runner, requests: Seq[Request]) -> list[tuple[list[int], int]]:
    """Answer requests together; return the tokens of each and its number of cached tokens."""
    streams = [runner.submit(request) for request in requests]
    done = [stream.result() for stream in streams]
    return [(answer.choices[0].token_ids, answer.usage.cached_tokens) for answer in done]


def _agreement(
    way: str, found: Seq[tuple[list[int], int]], wanted: Seq[list[int]], is_promised: bool
) -> Agreement:
    pairs = [(tokens, alone) for (tokens, _), alone in zip(found, wanted, strict=True)]
    return Agreement(
        way,
        len(pairs),
        sum(num_cached for _, num_cached in found),
        tuple(_first_difference(a, b) for a, b in pairs if a != b),
        is_promised,
    )


def _first_difference(a: Seq[int], b: Seq[int]) -> int:
    """Return the first index at which two answers differ; one may be longer."""
    shared = min(len(a), len(b))
    return next((i for i in range(shared) if a[i] != b[i]), shared)
