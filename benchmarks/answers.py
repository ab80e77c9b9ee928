"""The measurements of one round of :mod:`onnx_text`, independent of how a contender is called.

A contender is a function that answers requests. The module needs only the standard library, because
it also runs in the environments of peers.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass

NUM_TRIES = 5  # of one request, until every token has text
CLIENTS = {
    1: 3,
    8: 2,
    32: 1,
}  # repetitions by number of clients: with fewer clients, one is shorter
PROMPTS = {512: 3, 2048: 1}  # repetitions by number of prompt tokens
START_TOKENS = 64  # tokens of the prompt of an answer
FIRST_WORD = 1000  # larger ids are words in every vocabulary of :mod:`shapes`
SAMPLING = {"temperature": 0.15, "top_p": 0.95, "top_k": 40}  # see docs/how-to/benchmark.md


@dataclass(frozen=True)
class AnswerTimes:
    """The times of one or several simultaneous answers.

    Attributes:
        num_tokens: the tokens of all answers.
        first_s: the mean time to the first token.
        wall_s: the time to the end of the last answer.
        together_tokens_per_s: the rate while all answers grew; None if they never did.
    """

    num_tokens: float
    first_s: float
    wall_s: float
    together_tokens_per_s: float | None


Ask = Callable[[int, int, int], AnswerTimes]
"""Takes the number of clients, of tokens of each prompt, and of tokens of each answer."""

Figures = dict[str, float]
"""Tokens per second by column; :data:`COLUMNS` has their order."""


def clients(count: int) -> str:
    """Return the name of the column for a number of clients."""
    return f"{count} client" if count == 1 else f"{count} clients"


def answers_only(count: int) -> str:
    """Return the name of the column for decoding only, for a number of clients."""
    return f"{clients(count)}, answers only"


def prompt(num_tokens: int) -> str:
    """Return the name of the column for a prompt length."""
    return f"{num_tokens}-token prompt"


COLUMNS = (
    *map(clients, CLIENTS),
    *(answers_only(count) for count in CLIENTS if count > 1),
    *map(prompt, PROMPTS),
)


def figures(ask: Ask, num_tokens: int, *, is_sampled: bool) -> Figures:
    """Return tokens per second: medians of several tries, after a warm-up.

    Args:
        ask: sends requests to a contender.
        num_tokens: the tokens of each answer.
        is_sampled: whether tokens are sampled; prompt columns are then omitted.
    """
    ask(8, START_TOKENS, 2)
    ask(1, 512, 2)
    found: Figures = {}
    for count, tries in CLIENTS.items():
        seen = [_ask_for_all(ask, count, num_tokens) for _ in range(tries)]
        rate = _growth if count == 1 else _throughput
        found[clients(count)] = statistics.median(map(rate, seen))
        together = [s.together_tokens_per_s for s in seen if s.together_tokens_per_s]
        if together and count > 1:
            found[answers_only(count)] = statistics.median(together)
    for length, tries in () if is_sampled else PROMPTS.items():
        read = [ask(1, length, 1).first_s for _ in range(tries)]
        found[prompt(length)] = length / statistics.median(read)
    return found


def _growth(seen: AnswerTimes) -> float:
    return (seen.num_tokens - 1) / (seen.wall_s - seen.first_s)


def _throughput(seen: AnswerTimes) -> float:
    return seen.num_tokens / seen.wall_s


def _ask_for_all(ask: Ask, count: int, num_tokens: int) -> AnswerTimes:
    """Repeat requests until every token has text, which random weights do not ensure."""
    for _ in range(NUM_TRIES):
        answered = ask(count, START_TOKENS, num_tokens)
        if answered.num_tokens >= 0.95 * count * num_tokens:
            return answered
    raise RuntimeError("fewer texts came than were asked for")


def print_figures(load: Callable[[str, int, bool], Ask]) -> None:
    """Measure a library in this process by command line options; print JSON.

    Args:
        load: returns a contender, given the path of a model, a number of threads, and whether
            tokens are sampled by :data:`SAMPLING`.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--sampled", action="store_true")
    options = parser.parse_args()
    ask = load(options.model, options.threads, options.sampled)
    print(json.dumps(figures(ask, options.tokens, is_sampled=options.sampled)))


def of_batch(rows: int, num_tokens: int, first_s: float, wall_s: float) -> AnswerTimes:
    """Return the times of answers that began and ended together."""
    together = rows * (num_tokens - 1) / (wall_s - first_s) if num_tokens > 1 else None
    return AnswerTimes(rows * num_tokens, first_s, wall_s, together)
