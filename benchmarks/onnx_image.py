"""How long a question about an image waits for its first word, on random weights.

The shape is SmolVLM-500M's; a square picture is five tiles of 512 pixels, 320 rows of the decoder.
Cold means a picture that nobody has seen; seen before means the same one with another question.
"""

import json
import secrets
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import peers
import quiet
import server
import shapes
import tables
from PIL import Image

COLUMNS = {"cold": "cold image, s", "seen": "image seen before, s", "text": "no image, s"}
TARGET_COLD, TARGET_SEEN = 1.3, 5.0

Figures = dict[str, float]


def bench(options: peers.Options) -> None:
    """Measure everybody in turn and print the table."""
    shape = "smolvlm-small" if options.shape == "small" else "smolvlm-500m"
    checkpoint = shapes.save_image_model(shape, options.models / shape)
    contenders = dict(_contenders(checkpoint, options))
    seen: dict[str, list[Figures]] = {name: [] for name in contenders}
    for number in range(options.rounds):
        for name, measure in contenders.items():
            quiet.wait_until(options.idle_but)
            seen[name].append(measure())
            print(f"round {number + 1}, {name}: {json.dumps(seen[name][-1])}", flush=True)
    print(f"\ntime to first token, {shape}, {options.threads} threads")
    rows = [
        [name, *(peers.spread([f[key] for f in rounds]) for key in COLUMNS)]
        for name, rounds in seen.items()
    ]
    print(tables.markdown(["engine", *COLUMNS.values()], rows))
    _print_ratios(seen)


def _print_ratios(seen: dict[str, list[Figures]]) -> None:
    for ours in (name for name in seen if name.startswith("vlmkit")):
        cold = _median(seen[ours], "cold")
        ratio = cold / _median(seen[ours], "seen")
        print(f"{ours}: seen before is {ratio:.1f} times faster than cold (target {TARGET_SEEN})")
        for theirs in (name for name in seen if not name.startswith("vlmkit")):
            ratio = _median(seen[theirs], "cold") / cold
            print(f"{ours}: cold is {ratio:.2f} times faster than {theirs} (target {TARGET_COLD})")


def _median(rounds: list[Figures], column: str) -> float:
    return statistics.median(figures[column] for figures in rounds)


def _contenders(
    checkpoint: Path, options: peers.Options
) -> Iterator[tuple[str, Callable[[], Figures]]]:
    for precision in options.precisions:
        folder = peers.exported(checkpoint, precision)
        threads = f"media_encoder.num_threads={options.threads}"
        start = peers.vlmkit(folder, options, "--set", threads)
        yield f"vlmkit {precision}", _measure(start)
    file = peers.gguf(checkpoint, "q8_0", options, has_tower=True)
    if file is None or options.llama_server is None:
        print("not measured: llama.cpp: no --llama-server, or no --gguf that writes its files")
        return
    start = peers.llama_server(file, options, "--mmproj", str(peers.tower_of(checkpoint)))
    yield "llama-server q8_0", _measure(start)


def _measure(start: peers.Start) -> Callable[[], Figures]:
    def measure() -> Figures:
        with start() as (url, model), tempfile.TemporaryDirectory() as scratch:
            pictures = [str(_picture(Path(scratch) / f"{i}.jpg")) for i in range(2)]
            _first_s(url, model, pictures[0])  # nothing is warm before
            cold = _first_s(url, model, pictures[1])
            return {
                "cold": cold,
                "seen": _first_s(url, model, pictures[1]),
                "text": _first_s(url, model, ""),
            }

    return measure


def ask_about_pictures(url: str, model: str, number: int) -> None:
    """Ask about so many pictures that nobody has seen."""
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(number):
            _first_s(url, model, str(_picture(Path(scratch) / "new.jpg")))


def _first_s(url: str, model: str, picture: str) -> float:
    question = f"{secrets.token_hex(8)}: what is in this picture?"
    seen = server.load(url, model, tokens=2, prompt=question, image=picture)
    return float(seen["first_token_s"])


def _picture(file: Path) -> Path:
    """Save a square picture that nobody has seen: soft blots of random colours."""
    blots = np.random.default_rng(secrets.randbits(32)).integers(0, 256, (16, 16, 3), np.uint8)
    size = (shapes.LONGEST_EDGE, shapes.LONGEST_EDGE)
    Image.fromarray(blots).resize(size, Image.Resampling.BICUBIC).save(file, quality=90)
    return file
