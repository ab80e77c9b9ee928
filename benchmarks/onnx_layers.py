"""Measures the cost of the layers between the kernels of vlmkit-onnx and a client.

It reports the time of a token of one answer: the run of the graph, the engine's forward, the
pipeline in this process, and HTTP streaming.
"""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import peers
import quiet
import server
import shapes
import stopwatch

NUM_ANSWERS = 5  # answers of each kind in a round
PROMPT = "some words of no meaning " * 2


def bench(options: peers.Options) -> None:
    """Measure each precision and print."""
    checkpoint = shapes.save(options.shape, options.models / f"random-{options.shape}")
    for precision in options.precisions:
        folder = peers.exported(checkpoint, precision)
        quiet.wait_until(options.idle_but)
        seen = measure(folder, options)
        print(f"{precision}, {options.shape}, {options.threads} threads, ms for each token:")
        print("  " + "; ".join(f"{name} {peers.spread(v)}" for name, v in seen.items()))
        for name in ("graph", "forward"):
            ratios = [http / own for http, own in zip(seen["HTTP"], seen[name], strict=True)]
            print(f"  HTTP over {name} {peers.spread(ratios)} (target 1.05)")


def measure(folder: Path, options: peers.Options) -> dict[str, list[float]]:
    """Return figures of answers in this process and over HTTP, in turn.

    The speed of a machine's memory changes from minute to minute, so only adjacent figures are
    compared.
    """
    import vlmkit

    settings = {"num_threads": options.threads}
    with ThreadPoolExecutor(
        1
    ) as loader:  # as in the server: OpenMP pools belong to the loading thread
        model = loader.submit(vlmkit.load, str(folder), engine=settings).result()
    seen: dict[str, list[float]] = {}
    with model, peers.vlmkit(folder, options)() as (url, name):
        here = InProcess(model, options.tokens)
        there = partial(server.load, url, name, tokens=options.tokens, prompt=PROMPT)
        here.answer()
        there()
        for _ in range(NUM_ANSWERS * options.rounds):
            figures = here.answer()
            answer = there()
            each_s = (answer["wall_s"] - answer["first_token_s"]) / (answer["num_events"] - 1)
            for key, value in {**figures, "HTTP": 1000 * each_s}.items():
                seen.setdefault(key, []).append(value)
    return seen


class InProcess:
    """A pipeline with timed graph runs and forwards."""

    def __init__(self, model: Any, num_tokens: int) -> None:
        self._model, self._num_tokens = model, num_tokens
        self._forwards = stopwatch.timed(model.runner._engine, "forward")
        self._graph: list[float] = []
        decoder = model.runner._engine._decoder
        decoder._session = _Session(decoder._session, self._graph)
        self._request = model.request(PROMPT, max_tokens=num_tokens, ignore_eos=True)

    def answer(self) -> dict[str, float]:
        """Return the milliseconds of the graph run, the engine's forward and the pipeline."""
        done = self._model.submit(self._request).result()
        steps = slice(-self._num_tokens + 1, None)
        return {
            "graph": 1000 * statistics.fmean(self._graph[steps]),
            "forward": 1000 * statistics.fmean(self._forwards[steps]),
            "pipeline": 1000 * done.timings.decode_s / (self._num_tokens - 1),
        }


class _Session:
    """A session with timed runs."""

    def __init__(self, session: Any, seconds: list[float]) -> None:
        self._session = session
        self._seconds = seconds

    def run_with_iobinding(self, binding: Any) -> None:
        started = time.perf_counter()
        self._session.run_with_iobinding(binding)
        self._seconds.append(time.perf_counter() - started)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)
