"""The time to encode an image in another process of this machine, relative to this process.

For each size of images, this prints the pixels after resizing, the size of an image's inputs and
features, and the CPU time to encode it here. The ratios to encoding here follow: CPU time that this
process still spends, CPU time of both processes, time, and time of an image that is cached there.
On a busy machine, only CPU times mean anything. Linux only.

    python benchmarks/remote_encoder.py FOLDER
    python benchmarks/remote_encoder.py FOLDER --shape qwen2.5-vl --sides 128 256 512

``--shape`` first saves a model with random weights in the folder; see ``image_shapes``.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import image_shapes
import numpy as np
import tables

import vlmkit
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.types.message import Message
from vlmkit_grpc.encoders.encoder import num_pixels

SIDES = (56, 112, 168, 224, 336, 448, 672, 896)
SCOPE = b"benchmark"
MIB = 2**20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
COLUMNS = (
    *("image", "pixels", "inputs MiB", "features MiB", "CPU"),
    *("ratio: CPU here", "CPU of both", "time", "time, cached"),
)

Encode: TypeAlias = Callable[[MediaSlot], list[MediaFeatures]]


class Times(NamedTuple):
    """The times of one image in seconds."""

    wall_s: float
    here_s: float
    there_s: float


@contextmanager
def encoder_process(model: str, path: str, *options: str) -> Iterator[int]:
    """Run an encoder of a model, and return its process id."""
    command = [sys.executable, "-m", "vlmkit", "encoder", model, "--listen", f"unix:{path}"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = process.stderr or ()
            if not any(line.startswith("ready") for line in lines):
                raise SystemExit("the encoder did not start")
            yield process.pid
        finally:
            process.kill()


def slot_of(model: vlmkit.Model, side: int, seed: int) -> MediaSlot:
    """Return the slot of a square image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    message = Message.of("user", "What is it?", [vlmkit.Image.open(pixels)])
    tokenizer: Any = model.runner._tokenizer  # type: ignore[attr-defined]
    (slot,) = tokenizer.prompt([message]).media
    return slot


class Stopwatch:
    """Measures encodings: the time, and the CPU time of this process and of the encoder's.

    Args:
        pid: the encoder's process.
    """

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")

    def measured(self, encode: Encode, slots: Sequence[MediaSlot]) -> Times:
        """Return the times of one image, in seconds: a median, and means of CPU times."""
        walls = []
        here_s, there_s = time.process_time(), self._there_s()
        for slot in slots:
            began_s = time.perf_counter()
            encode(slot)
            walls.append(time.perf_counter() - began_s)
        time.sleep(0.05)  # the encoder may be about to end the call
        here_s, there_s = time.process_time() - here_s, self._there_s() - there_s
        return Times(statistics.median(walls), here_s / len(slots), there_s / len(slots))

    def _there_s(self) -> float:
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def row(
    model: vlmkit.Model, watch: Stopwatch, ways: Mapping[str, Encode], side: int, num_images: int
) -> list[str]:
    """Return the row of a size."""
    slots = [slot_of(model, side, side * 1000 + number) for number in range(num_images + 1)]
    for encode in ways.values():  # warms up
        encode(slots[-1])
    slots.pop()
    here = watch.measured(ways["here"], slots)
    new = watch.measured(ways["there"], slots)
    cached = watch.measured(ways["there"], slots)
    inputs = sum(np.from_dlpack(array).nbytes for array in slots[0].inputs.values())
    (features,) = ways["here"](slots[0])
    return [
        f"{side}x{side}",
        f"{num_pixels(slots[0])}",
        f"{inputs / MIB:.2f}",
        f"{features.num_bytes / MIB:.2f}",
        f"{1000 * here.here_s:.0f} ms",
        f"{new.here_s / here.here_s:.3f}",
        f"{(new.here_s + new.there_s) / here.here_s:.2f}",
        f"{new.wall_s / here.wall_s:.2f}",
        f"{cached.wall_s / here.wall_s:.3f}",
    ]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--shape", choices=image_shapes.IMAGE_SHAPES)
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES)
    parser.add_argument("--images", type=int, default=8, help="of each size")
    parser.add_argument("--use", default="torch", help="the encoder in this process and the other")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.shape:
        image_shapes.save(args.shape, Path(args.model))
    own = {"num_threads": args.threads}
    engine = {"use": args.use, "num_threads": args.threads, "self_check": False}
    options = [f"{part}.use={args.use}" for part in ("engine", "media_encoder")]
    options += [f"{part}.num_threads={args.threads}" for part in ("engine", "media_encoder")]
    given = [word for option in options for word in ("--set", option)]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/encoder.sock"
        remote = {"use": "remote", "addresses": [f"unix:{path}"], "min_pixels": 0}
        remote |= {"local": args.use, "local_settings": own, "timeout_s": 600.0}
        with (
            encoder_process(args.model, path, *given) as pid,
            vlmkit.load(args.model, engine=engine, media_encoder=remote) as model,
        ):
            encoder: Any = model.runner._encoder  # type: ignore[attr-defined]
            ways = {
                "here": lambda slot: encoder._local.encode([slot]),
                "there": lambda slot: encoder.encode_in_scopes([slot], [SCOPE]),
            }
            print(tables.markdown(COLUMNS, []), flush=True)
            watch = Stopwatch(pid)
            for side in args.sides:
                found = row(model, watch, ways, side, args.images)
                print(tables.markdown(found, []).partition("\n")[0], flush=True)
            counters = encoder.counters()
            if counters["num_remote_fallbacks"]:
                raise SystemExit(f"images were encoded here in place of there: {counters}")


if __name__ == "__main__":
    main()
