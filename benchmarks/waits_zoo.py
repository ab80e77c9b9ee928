"""Measures the longest gap of an answer during the longest prompt, by family of the zoo.

    PYTHONPATH=tests python benchmarks/waits_zoo.py [--rounds 3] [--engine torch] [NAME ...]

For each family, without and with images, it prints in milliseconds: the usual gap of the answer
alone, the longest gap during the prompt, and the longest step in that time. The last column is the
gap in such steps. The models are tiny, so the figures show the cost outside the engine, and whether
the prompts of a family are chunked.
"""

import argparse
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from waits import NUM_WARM, Reader, new_text

import vlmkit
import zoo
from vlmkit.config import Config
from vlmkit.settings.plugins import PluginSettings

NUM_IMAGES = 4
NUM_OTHER_TOKENS = 2
SETTLE_S = 0.1  # an observer receives a step a little later


def images(seed: int) -> list[Any]:
    """Return new images."""
    return [zoo.picture(seed + i, 96, 64) for i in range(NUM_IMAGES)]


def gap(model: vlmkit.Model, shown: list[Any]) -> tuple[float, float, float]:
    """Return an answer's gap alone, its longest gap during a long prompt, and the longest step."""
    longest = model.facts.limits.max_sequence_tokens
    answer = Reader(model, "count on", longest // 2, shown[:1])
    answer.wait_for(4 * NUM_WARM)
    time.sleep(SETTLE_S)
    model.stats()
    num_before = len(answer.times)
    started = time.perf_counter()
    _long(model, shown)
    stopped = time.perf_counter()
    answer.wait_for(len(answer.times) + 2)
    time.sleep(SETTLE_S)
    longest_step_s = model.stats().observed["longest_step"]["longest_s"]
    answer.stream.abort()
    answer.join()
    times = answer.times
    gaps = [(b - a, b) for a, b in pairwise(times)]
    alone = statistics.median(g for g, _ in gaps[NUM_WARM : num_before - 1])
    during = [g for g, at in gaps if started <= at and at - g <= stopped]
    return 1000 * alone, 1000 * max(during, default=0.0), 1000 * longest_step_s


def _long(model: vlmkit.Model, shown: list[Any]) -> None:
    """Send the longest prompt that fits, and read its answer."""
    num_tokens = model.facts.limits.max_sequence_tokens - NUM_OTHER_TOKENS
    while num_tokens > 0:
        try:
            text = new_text(model, num_tokens)
            model.generate(text, images=shown, max_tokens=NUM_OTHER_TOKENS)
        except vlmkit.RequestError:
            num_tokens -= max(8, model.facts.limits.max_sequence_tokens // 32)
        else:
            return
    raise SystemExit("no prompt fits")


def measure(name: str, folder: Path, engine: str, rounds: int) -> None:
    """Measure one family and print."""
    chosen = {"engine": {"use": engine}, "observers": {"use": ["longest_step"]}}
    plugins = (str(Path(__file__).with_name("longest_step.py")),)
    with vlmkit.load(
        folder, config=Config(plugins=PluginSettings(files=plugins)), **chosen
    ) as model:
        for num in (0, NUM_IMAGES) if model.facts.takes_images else (0,):
            try:
                gap(model, images(0)[:num])  # warm-up of compilation and allocation
            except vlmkit.RequestError:  # a family that needs an image
                continue
            found = [gap(model, images(10 * (i + 1))[:num]) for i in range(rounds)]
            alone, longest, step = map(statistics.median, zip(*found, strict=True))
            told = f"{alone:8.1f} {longest:8.1f} {step:8.1f} {longest / step:6.2f}"
            print(
                f"{name:20} {model.facts.limits.max_sequence_tokens:6} {num:6} {told}", flush=True
            )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*zoo.NAMES_TEXT, *zoo.NAMES_VISION])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="torch", help="the name of the provider")
    options = parser.parse_args()
    print(f"{'family':20} tokens images {'alone':>8} {'longest':>8} {'step':>8}  steps")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            measure(name, zoo.save(name, Path(folder) / name), options.engine, options.rounds)


if __name__ == "__main__":
    main()
