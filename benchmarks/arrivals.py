"""When questions come, and how long they are, where nobody waits for anybody.

Chance has a seed: everybody is asked the same lengths at the same moments.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

LONG_EVERY = 8
LONG_PROMPT, LONG_ANSWER = 1024, 16  # tokens: somebody pastes a text
SHORT_PROMPTS, SHORT_ANSWERS = (32, 128), (16, 64)  # tokens, at least and at most


@dataclass(frozen=True)
class Arrival:
    """One question.

    Attributes:
        at_s: when it comes, after the beginning.
        prompt_tokens: of the question.
        answer_tokens: of the answer.
        is_long: whether it is one of those that make others wait.
    """

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    is_long: bool


def schedule(per_s: float, duration_s: float, seed: int = 0) -> Iterator[Arrival]:
    """Yield a Poisson process: short questions, and now and then a long one among them."""
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
