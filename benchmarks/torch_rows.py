"""Measures the effect of a long answer on others: vlmkit-torch, random weights of a real shape.

It runs short answers and a long one, alone and together. Only decode steps of all answers count,
not prefill.
"""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import contenders
import peers
import quiet
import shapes
import tables

SHORT, LONG, BOTH, EVEN = "8 short", "1 long", "8 short and 1 long", "8 of even length"
PROMPTS = {  # tokens
    SHORT: [64] * 8,
    LONG: [3800],
    BOTH: [*[64] * 8, 3800],
    EVEN: [1000] * 8,
}
CACHE_TOKENS = 2**14


def bench(options: peers.Options) -> None:
    """Measure and print."""
    import vlmkit

    checkpoint = shapes.save(options.shape, options.models / f"random-{options.shape}")
    engine = {"use": "torch", "num_threads": options.threads, "cache_tokens": CACHE_TOKENS}
    with ThreadPoolExecutor(
        1
    ) as loader:  # as in the server: OpenMP pools belong to the loading thread
        model = loader.submit(vlmkit.load, str(checkpoint), engine=engine).result()
    seen: dict[str, list[float]] = {name: [] for name in PROMPTS}
    with model:
        steps = Steps(model.runner._engine)
        for number in range(options.rounds):
            for name, lengths in PROMPTS.items():
                quiet.wait_until(options.idle_but)
                seen[name].append(steps.of_answers(model, lengths, options.tokens))
                print(f"round {number + 1}, {name}: {1000 * seen[name][-1]:.4g} ms", flush=True)
    print(f"\nvlmkit-torch, {options.shape}, {options.threads} threads")
    rows = [
        [
            name,
            peers.spread([1000 * s for s in seen[name]]),
            peers.spread([len(lengths) / s for s in seen[name]]),
        ]
        for name, lengths in PROMPTS.items()
    ]
    print(tables.markdown(["answers", "ms for a step", "tokens/s"], rows))
    parts = [short + long for short, long in zip(seen[SHORT], seen[LONG], strict=True)]
    ratios = [both / sum_s for both, sum_s in zip(seen[BOTH], parts, strict=True)]
    print(f"a step of both over the sum of its parts: {peers.spread(ratios)} (target 1)")


class Steps:
    """Times the decode steps of an engine.

    Args:
        engine: the engine whose ``forward`` is timed.
    """

    def __init__(self, engine: Any) -> None:
        self._forward = engine.forward
        self._seconds: dict[int, list[float]] = {}
        engine.forward = self._timed

    def of_answers(self, model: Any, prompt_tokens: list[int], tokens: int) -> float:
        """Return the median seconds of a step of answers to new prompts of these lengths."""
        self._seconds.clear()
        with ThreadPoolExecutor(len(prompt_tokens)) as readers:
            answers = [
                model.submit(
                    model.request(contenders.new_prompt(n), max_tokens=2 * tokens, ignore_eos=True)
                )
                for n in prompt_tokens
            ]
            for done in [readers.submit(answer.result) for answer in answers]:
                done.result()
        return statistics.median(self._seconds[len(prompt_tokens)])

    def _timed(self, items: Any) -> Any:
        started = time.perf_counter()
        output = self._forward(items)
        if all(item.num_tokens == 1 for item in items):
            float(output.logits[0, 0])  # a device may still compute
            self._seconds.setdefault(len(items), []).append(time.perf_counter() - started)
        return output
