"""What lies between vlmkit-onnx's kernels and a client.

Seconds of one token of one answer: the bare run of the graph, the engine's forward, the pipeline in
this process, and HTTP streaming.
"""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import peers
import quiet
import server
import shapes

PROMPT = "some words of no meaning " * 2


def bench(options: peers.Options) -> None:
    """Measure each precision and print."""
    checkpoint = shapes.save(options.shape, options.models / f"random-{options.shape}")
    for precision in options.precisions:
        folder = peers.exported(checkpoint, precision)
        seen: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            quiet.wait_until(options.idle_but)
            figures = in_process(folder, options) | served(folder, options)
            for name, value in figures.items():
                seen.setdefault(name, []).append(value)
        print(f"{precision}, {options.shape}, {options.threads} threads, ms for each token:")
        print("  " + "; ".join(f"{name} {peers.spread(v)}" for name, v in seen.items()))
        bare, http = statistics.median(seen["graph"]), statistics.median(seen["HTTP"])
        forward = statistics.median(seen["forward"])
        print(
            f"  HTTP over graph {http / bare:.3f}, over forward {http / forward:.3f} (target 1.05)"
        )


def in_process(folder: Path, options: peers.Options) -> dict[str, float]:
    """Return milliseconds of the graph's run, the engine's forward and the pipeline."""
    import vlmkit

    settings = {"num_threads": options.threads}
    with ThreadPoolExecutor(1) as loader:  # as the server does: OpenMP minds who loaded
        model = loader.submit(vlmkit.load, str(folder), engine=settings).result()
    with model:
        engine: Any = model._engine
        forwards = _timed(engine, "forward")
        decoder = engine._decoder
        session = decoder._session
        graph: list[float] = []
        decoder._session = _Session(session, graph)
        request = model.request(PROMPT, max_tokens=options.tokens, ignore_eos=True)
        for _ in range(2):
            forwards.clear()
            graph.clear()
            done = model.submit(request).result()
        return {
            "graph": 1000 * statistics.fmean(graph[-options.tokens + 1 :]),
            "forward": 1000 * statistics.fmean(forwards[-options.tokens + 1 :]),
            "pipeline": 1000 * done.timings.decode_s / (options.tokens - 1),
        }


def served(folder: Path, options: peers.Options) -> dict[str, float]:
    """Return milliseconds between two tokens of an answer through HTTP streaming."""
    with peers.vlmkit(folder, options)() as (url, model):
        for _ in range(2):
            seen = server.load(url, model, tokens=options.tokens, prompt=PROMPT)
    each_s = (seen["wall_s"] - seen["first_token_s"]) / (seen["num_events"] - 1)
    return {"HTTP": 1000 * each_s}


class _Session:
    """A session whose runs are timed."""

    def __init__(self, session: Any, seconds: list[float]) -> None:
        self._session = session
        self._seconds = seconds

    def run_with_iobinding(self, binding: Any) -> None:
        started = time.perf_counter()
        self._session.run_with_iobinding(binding)
        self._seconds.append(time.perf_counter() - started)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def _timed(subject: Any, method: str) -> list[float]:
    """Return a list that every later call of a method appends its seconds to."""
    plain: Callable[..., object] = getattr(subject, method)
    seconds: list[float] = []

    def timed(*args: object) -> object:
        started = time.perf_counter()
        result = plain(*args)
        seconds.append(time.perf_counter() - started)
        return result

    setattr(subject, method, timed)
    return seconds
