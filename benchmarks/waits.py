"""Measures how requests delay each other, on one model in this process.

    python benchmarks/waits.py MODEL [--rounds 3] [--prompt-tokens 1024] [--engine onnx]

It prints the longest gap in a running answer during a long prompt, against the step of the answer
alone; the time to first token of eight simultaneous requests, mean and largest; and the computed
tokens of eight requests with a new shared prefix, against one of them. To compare two commits, run
it with the packages of each on ``PYTHONPATH``.
"""

import argparse
import itertools
import secrets
import statistics
import threading
import time
from collections.abc import Sequence as Seq
from itertools import pairwise
from pathlib import Path
from typing import Any

from peers import spread

import vlmkit

NUM_CLIENTS = 8
WORDS = "some words of no meaning "
NUM_WARM = 8  # tokens of an answer before others arrive


class Reader(threading.Thread):
    """Reads one answer and records the arrival time of each token."""

    def __init__(self, model: Any, prompt: str, tokens: int, images: Seq[Any] = ()) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self.asked = time.perf_counter()
        self.stream = model.submit(
            model.request(prompt, images=images, max_tokens=tokens, ignore_eos=True)
        )
        self.start()

    def run(self) -> None:
        """Read the answer to its end."""
        for chunk in self.stream:
            self.times += [time.perf_counter()] * len(chunk.samples)

    @property
    def first_s(self) -> float:
        """The time to first token."""
        return self.times[0] - self.asked

    def wait_for(self, num_tokens: int) -> None:
        """Wait until the answer has a number of tokens."""
        while len(self.times) < num_tokens and self.is_alive():
            time.sleep(0.002)


def new_text(model: Any, num_tokens: int) -> str:
    """Return a new text of about a number of tokens."""
    text = f"{secrets.token_hex(8)} " + WORDS * num_tokens
    ids = model.runner._tokenizer.encode(text[:4000])
    return text[: num_tokens * len(text[:4000]) // len(ids)]


def gap(model: Any, prompt_tokens: int) -> tuple[float, float]:
    """Return the longest gap of an answer during a long prompt, and its gap before, in ms."""
    answer = Reader(model, new_text(model, 20), model.facts.limits.max_sequence_tokens // 2)
    answer.wait_for(4 * NUM_WARM)
    num_before = len(answer.times)
    other = Reader(model, new_text(model, prompt_tokens), 2)
    other.join()
    answer.wait_for(len(answer.times) + 2)
    answer.stream.abort()
    answer.join()
    gaps = [later - sooner for sooner, later in pairwise(answer.times)]
    alone = statistics.median(gaps[NUM_WARM : num_before - 1])
    return 1000 * max(gaps[num_before - 1 :]), 1000 * alone


def burst(model: Any, prompt_tokens: int) -> list[float]:
    """Return the times to first token of eight simultaneous requests, in ms."""
    readers = [Reader(model, new_text(model, prompt_tokens), 8) for _ in range(NUM_CLIENTS)]
    for reader in readers:
        reader.join()
    return [1000 * reader.first_s for reader in readers]


def common(model: Any, prompt_tokens: int) -> tuple[int, int]:
    """Return the computed tokens of one request with a new prefix, and of eight that share one."""
    found = []
    for num_clients in (1, NUM_CLIENTS):
        start, before = new_text(model, prompt_tokens), _num_computed(model)
        ends = itertools.islice(itertools.count(), num_clients)
        for reader in [Reader(model, f"{start} {end}?", 1) for end in ends]:
            reader.join()
        found.append(_num_computed(model) - before)
    return found[0], found[1]


def _num_computed(model: Any) -> int:
    return int(model.stats().counters["num_tokens_computed"])


def measure(model: Any, rounds: int, prompt_tokens: int) -> None:
    """Measure one model and print."""
    longest = min(prompt_tokens, model.facts.limits.max_sequence_tokens // 2)
    model.generate("warm up " * 20, max_tokens=8)
    gaps = [gap(model, longest) for _ in range(rounds)]
    bursts = [burst(model, longest // 4) for _ in range(rounds)]
    one, eight = common(model, longest)
    print(f"longest gap during a prompt of {longest} tokens, ms: {spread([g for g, _ in gaps])}")
    print(f"  gap alone: {spread([alone for _, alone in gaps])}")
    print(f"eight at once with {longest // 4} tokens each, first token, ms:")
    means, largest = [statistics.mean(b) for b in bursts], [max(b) for b in bursts]
    print(f"  mean {spread(means)}, largest {spread(largest)}")
    ratios = [mean / most for mean, most in zip(means, largest, strict=True)]
    print(f"  mean over largest: {spread(ratios)}")
    print(f"eight with a new shared prefix of {longest} tokens, computed tokens: {eight}")
    print(f"  over one: {eight / one:.2f}")


def bench(folder: Path, rounds: int) -> None:
    """Measure a model with the default components of this machine."""
    with vlmkit.load(str(folder)) as model:
        measure(model, rounds, 1024)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--engine", help="the name of the provider")
    options = parser.parse_args()
    chosen = {"engine": {"use": options.engine}} if options.engine else {}
    with vlmkit.load(options.model, **chosen) as model:
        measure(model, options.rounds, options.prompt_tokens)


if __name__ == "__main__":
    main()
