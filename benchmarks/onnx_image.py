"""Measures the time to first token of requests with an image, on random weights.

There are three shapes, see :mod:`image_shapes`. *Cold* is a new image; *seen before* is the same
image with another question. The table also has the distance of our features from float32. On random
weights it shows the effect of rounding, not its cost in accuracy.
"""

import json
import secrets
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import image_shapes
import numpy as np
import peers
import quiet
import server
import tables
from PIL import Image

COLUMNS = {"cold": "cold image, s", "seen": "image seen before, s", "text": "no image, s"}
SHAPES = ("smolvlm-256m", "smolvlm-500m", "qwen2.5-vl")
TARGET_COLD, TARGET_SEEN = 2.0, 5.0

Figures = dict[str, float]
Measurement = Callable[[], Figures]


def bench(options: peers.Options) -> None:
    """Measure each contender in turn, shape by shape, and print a table of each."""
    for shape in ("smolvlm-small",) if options.shape == "small" else SHAPES:
        _bench(shape, options)


def _bench(shape: str, options: peers.Options) -> None:
    checkpoint = image_shapes.save(shape, options.models / shape)
    contenders = dict(_contenders(shape, checkpoint, options))
    names = list(contenders)
    seen: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(options.rounds):
        first = number % len(names)  # a contender does not always follow the same one
        for name in (*names[first:], *names[:first]):
            quiet.wait_until(options.idle_but)
            seen[name].append(contenders[name]())
            print(f"round {number + 1}, {name}: {json.dumps(seen[name][-1])}", flush=True)
    print(f"\ntime to first token, {shape}, {options.threads} threads")
    errors = dict(_errors(shape, checkpoint, options))
    rows = [
        [name, *(peers.spread([f[key] for f in rounds]) for key in COLUMNS), errors.get(name, "-")]
        for name, rounds in seen.items()
    ]
    print(tables.markdown(["engine", *COLUMNS.values(), "features off by"], rows))
    _print_ratios(seen)


def _print_ratios(seen: dict[str, list[Figures]]) -> None:
    for ours in (name for name in seen if name.startswith("vlmkit")):
        cold = _median(seen[ours], "cold")
        ratio = cold / _median(seen[ours], "seen")
        print(f"{ours}: seen before is {ratio:.1f} times faster than cold (target {TARGET_SEEN})")
        for theirs in (name for name in seen if not name.startswith("vlmkit")):
            pairs = zip(seen[ours], seen[theirs], strict=True)
            ratios = [their["cold"] / our["cold"] for our, their in pairs]
            print(
                f"{ours}: cold is {peers.spread(ratios)} times faster than {theirs} "
                f"(target {TARGET_COLD})",
                flush=True,
            )


def _median(rounds: list[Figures], column: str) -> float:
    return statistics.median(figures[column] for figures in rounds)


def _contenders(
    shape: str, checkpoint: Path, options: peers.Options
) -> Iterator[tuple[str, Measurement]]:
    edge = image_shapes.IMAGE_SHAPES[shape].edge
    for name, folder in _exports(checkpoint, options):
        threads = f"media_encoder.num_threads={options.threads}"
        yield name, _measure(peers.vlmkit(folder, options, "--set", threads), edge)
    file = peers.gguf(checkpoint, "q8_0", options, has_tower=True)
    if file is None or options.llama_server is None:
        print("not measured: llama.cpp: no --llama-server, or no --gguf that writes its files")
        return
    start = peers.llama_server(file, options, "--mmproj", str(peers.tower_of(checkpoint)))
    yield "llama-server q8_0", _measure(start, edge)


def _exports(checkpoint: Path, options: peers.Options) -> Iterator[tuple[str, Path]]:
    for precision in options.precisions:
        for tower in options.towers:
            folder = peers.exported(checkpoint, precision, tower)
            yield f"vlmkit {precision}, tower {tower}", folder


def _measure(start: peers.Start, edge: int) -> Measurement:
    def measure() -> Figures:
        with start() as (url, model), tempfile.TemporaryDirectory() as scratch:
            images = [str(_new_image(Path(scratch) / f"{i}.jpg", edge)) for i in range(2)]
            _first_s(url, model, images[0])  # warm-up
            cold = _first_s(url, model, images[1])
            return {
                "cold": cold,
                "seen": _first_s(url, model, images[1]),
                "text": _first_s(url, model, ""),
            }

    return measure


def _errors(shape: str, checkpoint: Path, options: peers.Options) -> Iterator[tuple[str, str]]:
    """Yield the relative distance of each export's features from float32's."""
    exact = None
    for tower in ("fp32", *(tower for tower in options.towers if tower != "fp32")):
        folder = peers.exported(checkpoint, options.precisions[0], tower)
        found = _features(folder, image_shapes.IMAGE_SHAPES[shape].edge)
        exact = found if exact is None else exact
        off = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        for precision in options.precisions:
            yield f"vlmkit {precision}, tower {tower}", f"{100 * off:.2g} %"


def _features(folder: Path, edge: int) -> np.ndarray:
    """Return the rows of a fixed image."""
    import vlmkit

    image = Image.fromarray(_blots(0)).resize((edge, edge), Image.Resampling.BICUBIC)
    with vlmkit.load(str(folder)) as model:
        request = model.request("what is this?", images=[image])
        slots = model.runner._tokenizer.prompt(request.messages).media
        (features,) = model.runner._encoder.encode(slots)
    return np.asarray(features.embeddings)


def ask_about_images(url: str, model: str, number: int) -> None:
    """Send requests about a number of new images."""
    edge = image_shapes.IMAGE_SHAPES["smolvlm-500m"].edge
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(number):
            _first_s(url, model, str(_new_image(Path(scratch) / "new.jpg", edge)))


def _first_s(url: str, model: str, image: str) -> float:
    question = f"{secrets.token_hex(8)}: what is in this picture?"
    seen = server.load(url, model, tokens=2, prompt=question, image=image)
    return float(seen["first_token_s"])


def _new_image(file: Path, edge: int) -> Path:
    """Save a new square image of soft blots in random colours."""
    blots = Image.fromarray(_blots(secrets.randbits(32)))
    blots.resize((edge, edge), Image.Resampling.BICUBIC).save(file, quality=90)
    return file


def _blots(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (16, 16, 3), np.uint8)
