"""Arrival times and lengths of requests in an open loop.

The schedule is a function of a seed, so all contenders get the same lengths at the same times.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

LONG_EVERY = 8
LONG_PROMPT, LONG_ANSWER = 1024, 16  # tokens of a pasted text
SHORT_PROMPTS, SHORT_ANSWERS = (32, 128), (16, 64)  # tokens, minimum and maximum


@dataclass(frozen=True)
class Arrival:
    """One request.

    Attributes:
        at_s: the arrival time after the start.
        prompt_tokens: the tokens of the prompt.
        answer_tokens: the tokens of the answer.
        is_long: whether it has the long prompt that delays others.
    """

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    is_long: bool


def schedule(per_s: float, duration_s: float, seed: int = 0) -> Iterator[Arrival]:
    """Yield a Poisson process of short requests and a few long ones."""
    chance = random.Random(seed)
    at_s, number = chance.expovariate(per_s), 0
    while at_s < duration_s:
        number += 1
        if number % LONG_EVERY == LONG_EVERY // 2:
            yield Arrival(at_s, LONG_PROMPT, LONG_ANSWER, is_long=True)
        else:
            prompt, answer = chance.randint(*SHORT_PROMPTS), chance.randint(*SHORT_ANSWERS)
            yield Arrival(at_s, prompt, answer, is_long=False)
        at_s += chance.expovariate(per_s)
