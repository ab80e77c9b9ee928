"""Measures the cost of an observer, in nanoseconds for each token.

    python benchmarks/observers.py --tokens 20000 --repeats 15

It sends chunks to a channel like the engine loop, without and with observers. ``handing`` is the
time of the loop's thread; ``all`` includes the observers' threads. Each is the best round.
"""

import argparse
import time

from vlmkit.interfaces.observer import Observer, RequestFacts
from vlmkit.running.engine_loop.stream import Channel, Wakeups
from vlmkit.running.observers.builtin import Counters
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.types.completion import Chunk
from vlmkit.types.delta import TextDelta
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams


class EveryToken(Observer):
    """Receives each token, and does almost nothing."""

    num_chunks = 0

    def tokens(self, request, chunk, at_s):  # noqa: ARG002
        self.num_chunks += 1


SETTINGS = {
    "nobody": dict,
    "counters": lambda: {"counters": Counters()},
    "every token": lambda: {"every": EveryToken()},
    "both": lambda: {"counters": Counters(), "every": EveryToken()},
}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    rounds = {name: [] for name in SETTINGS}
    for _ in range(options.repeats):
        for name, made in SETTINGS.items():
            rounds[name].append(_round(made(), options.tokens))
    for name, found in rounds.items():
        handing, whole = (min(times) / options.tokens * 1e9 for times in zip(*found, strict=True))
        print(f"{name:12} handing {handing:6.0f} ns  all {whole:6.0f} ns")


def _round(observers: dict[str, Observer], num_tokens: int) -> tuple[float, float]:
    """Return the CPU time of this thread and of the process for the tokens of a request."""
    watching = ObserverDispatch(observers) if observers else None
    facts = RequestFacts("req", "mock", "", SamplingParams(), 1)
    channel = Channel(facts, max_unread_tokens=num_tokens, observers=watching)
    wakeups = Wakeups()
    chunk = Chunk(0, (TextDelta("token "),), (Sample(1),))
    last = Chunk(0, (), (Sample(2),), "length")
    whole, own = time.process_time(), time.thread_time()
    channel.accept(wakeups)
    for _ in range(num_tokens - 1):
        channel.put(chunk, wakeups)
    channel.put(last, wakeups)
    own = time.thread_time() - own
    if watching is not None:
        watching.close()
    return own, time.process_time() - whole


if __name__ == "__main__":
    main()
