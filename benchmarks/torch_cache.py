"""Measures what an 8-bit cache of vlmkit-torch costs in accuracy and in time.

The packaged model answers held-out questions with a cache in its precision and with one of 8 bits.
Both follow the answers of float32, and their distributions of every next token are compared. Then
random weights of a real shape decode with both caches in turn, at several lengths.
"""

import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import accuracy
import peers
import quiet
import shapes
import tables
import torch_rows

CACHES = ("auto", "int8")
DTYPES = ("float32", "bfloat16")
CACHE_TOKENS = 2**14


def bench(options: peers.Options) -> None:
    """Measure and print both tables."""
    _accuracy(options)
    _speed(options)


def _accuracy(options: peers.Options) -> None:
    cases = accuracy.evaluation().make_cases(options.cases)
    folder = accuracy.packaged(options.models)

    def engine(dtype: str, cache: str) -> dict[str, Any]:
        return {"use": "torch", "dtype": dtype, "cache_dtype": cache}

    exact = accuracy.answers(folder, cases, engine=engine("float32", "auto"))
    rows = [accuracy.row("float32, auto", cases, exact, exact)]
    for dtype in DTYPES:
        for cache in CACHES if dtype != "float32" else CACHES[1:]:
            name = f"{dtype}, {cache}"
            more = {"engine": engine(dtype, cache)}
            rows.append(accuracy.compared(name, folder, cases, exact, **more))
            print(" ".join(rows[-1]), flush=True)
    num_tokens = sum(map(len, exact.tokens.values()))
    print(f"\nthe packaged model: {len(cases)} questions, {num_tokens} tokens of float32's answers")
    print(tables.markdown(["precision, cache", *accuracy.COLUMNS], rows))


def _speed(options: peers.Options) -> None:
    import vlmkit

    checkpoint = shapes.save(options.shape, options.models / f"random-{options.shape}")
    models = []
    for cache in CACHES:
        engine = {
            "use": "torch",
            "num_threads": options.threads,
            "cache_tokens": CACHE_TOKENS,
            "cache_dtype": cache,
        }
        with ThreadPoolExecutor(1) as loader:  # OpenMP pools belong to the loading thread
            models.append(loader.submit(vlmkit.load, str(checkpoint), engine=engine).result())
    seen: dict[tuple[str, str], list[float]] = {}
    steps = [torch_rows.Steps(model.runner._engine) for model in models]
    for number in range(options.rounds):
        for name, lengths in torch_rows.PROMPTS.items():
            for cache, model, timed in zip(CACHES, models, steps, strict=True):
                quiet.wait_until(options.idle_but)
                taken_s = timed.of_answers(model, lengths, options.tokens)
                seen.setdefault((name, cache), []).append(taken_s)
                print(f"round {number + 1}, {name}, {cache}: {1000 * taken_s:.4g} ms", flush=True)
    for model in models:
        model.close()
    print(f"\nvlmkit-torch, {options.shape}, {options.threads} threads, ms for a decode step")
    rows = []
    for name in torch_rows.PROMPTS:
        dense, int8 = (seen[name, cache] for cache in CACHES)
        ratio = statistics.median(int8) / statistics.median(dense)
        times = [peers.spread([1000 * s for s in each]) for each in (dense, int8)]
        rows.append([name, *times, f"{ratio:.2f}"])
    print(tables.markdown(["answers", *CACHES, "int8 over auto"], rows))
