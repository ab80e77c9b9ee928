"""What everybody is asked in one round of :mod:`onnx_text`, however the question reaches them.

Knows no server and no library: a contender is a function that asks. Needs the standard library
only, for it also runs in the environments of peers.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass

NUM_TRIES = 5  # of one answer; the rest takes longer and is asked thrice
FIRST_WORD = 1000  # ids from here on are words in any vocabulary of :mod:`shapes`


@dataclass(frozen=True)
class Lengths:
    """Of what is asked, in tokens.

    Attributes:
        start: of the prompt of an answer.
        answer: of the answer.
        prompt: of the prompt that is only read.
    """

    start: int = 64
    answer: int = 64
    prompt: int = 512


@dataclass(frozen=True)
class Answered:
    """How long one or several answers took that were asked for at once.

    Attributes:
        num_tokens: of all of them.
        first_s: until the first token of each, on average.
        wall_s: until the end of the last.
        together_tokens_per_s: while all of them grew; None where they never did.
    """

    num_tokens: float
    first_s: float
    wall_s: float
    together_tokens_per_s: float | None


Ask = Callable[[int, int, int], Answered]
"""Takes a number of clients, of tokens of each one's prompt, and of tokens of each answer."""


def figures(ask: Ask, lengths: Lengths) -> dict[str, float]:
    """Return tokens per second: medians of several tries, after some that do not count."""
    ask(8, lengths.start, 2)
    ask(1, lengths.prompt, 2)
    one = [_ask_for_all(ask, 1, lengths) for _ in range(NUM_TRIES)]
    eight = [_ask_for_all(ask, 8, lengths) for _ in range(3)]
    prompt = [ask(1, lengths.prompt, 1) for _ in range(3)]
    median = statistics.median
    found = {
        "one": median((s.num_tokens - 1) / (s.wall_s - s.first_s) for s in one),
        "eight": median(s.num_tokens / s.wall_s for s in eight),
        "prompt": median(lengths.prompt / s.first_s for s in prompt),
    }
    together = [s.together_tokens_per_s for s in eight if s.together_tokens_per_s]
    return {**found, "eight_together": median(together)} if together else found


def _ask_for_all(ask: Ask, clients: int, lengths: Lengths) -> Answered:
    """Ask until every token came as a text; some that random weights choose have none."""
    for _ in range(NUM_TRIES):
        answered = ask(clients, lengths.start, lengths.answer)
        if answered.num_tokens >= 0.95 * clients * lengths.answer:
            return answered
    raise RuntimeError("fewer texts came than were asked for")


def print_figures(load: Callable[[str, int], Ask]) -> None:
    """Measure a library in this process by the options of its command line; print JSON.

    Args:
        load: returns who is asked, of a model's path and a number of threads.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--start", type=int, default=Lengths.start)
    parser.add_argument("--answer", type=int, default=Lengths.answer)
    parser.add_argument("--prompt", type=int, default=Lengths.prompt)
    options = parser.parse_args()
    ask = load(options.model, options.threads)
    print(json.dumps(figures(ask, Lengths(options.start, options.answer, options.prompt))))


def of_batch(rows: int, num_tokens: int, first_s: float, wall_s: float) -> Answered:
    """Return what is known of answers that began and ended together."""
    together = rows * (num_tokens - 1) / (wall_s - first_s) if num_tokens > 1 else None
    return Answered(rows * num_tokens, first_s, wall_s, together)
