"""What decoding pictures takes: memory of one file by format, and of twelve large ones at once.

    python benchmarks/image_memory.py costs
    python benchmarks/image_memory.py twelve --num-renderers 0 1 2

``costs`` prints the measured peak of each kind of file beside what
:mod:`vlmkit.ask.decode_cost` states for it, in bytes a pixel. ``twelve`` sends twelve pictures of
49 million pixels at once to a server, and prints the memory of all of its processes before, at most
and after, in MiB. Linux only.
"""

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import PIL.Image

MIB = 2**20
LARGE_SIDE = 7000
COSTS_SIZE = (5000, 4000)
NUM_AT_ONCE = 12

CHILD = """
import re, sys
from pathlib import Path
from vlmkit.ask.image import Image

def status(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

small, large = (Path(name).read_bytes() for name in sys.argv[1:])
Image.open(small).digest
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
image = Image.open(large)
image.digest
print(status("VmHWM") - before, image.cost.peak_bytes)
"""


class Measured(NamedTuple):
    """The peak of one file in bytes, and what is stated for it."""

    peak_bytes: int
    stated_bytes: int


def drawn(width: int, height: int) -> PIL.Image.Image:
    """Return a picture that no format finds empty."""
    shade = PIL.Image.linear_gradient("L").resize((width, height), PIL.Image.Resampling.NEAREST)
    ways = [shade, shade.transpose(PIL.Image.Transpose.ROTATE_180), shade.point(lambda x: x * 7)]
    return PIL.Image.merge("RGB", ways)


def saved(picture: PIL.Image.Image, kind: str, **options: Any) -> bytes:
    """Return a picture as a file."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def _tags() -> PIL.Image.Exif:
    tags = PIL.Image.Exif()
    tags[0x0112] = 6
    return tags


def _with_alpha(picture: PIL.Image.Image) -> PIL.Image.Image:
    made = picture.copy()
    made.putalpha(picture.getchannel(0))
    return made


def _palette(picture: PIL.Image.Image) -> PIL.Image.Image:
    return picture.quantize(16, method=PIL.Image.Quantize.FASTOCTREE)


def _wide(picture: PIL.Image.Image) -> PIL.Image.Image:
    return picture.convert("I").point(lambda x: x * 256).convert("I;16")


KINDS: dict[str, Callable[[PIL.Image.Image], bytes]] = {
    "PNG, 1 bit": lambda p: saved(p.convert("1"), "PNG"),
    "PNG, grey": lambda p: saved(p.convert("L"), "PNG"),
    "PNG, grey, alpha": lambda p: saved(_with_alpha(p).convert("LA"), "PNG"),
    "PNG, 16 bit": lambda p: saved(_wide(p), "PNG"),
    "PNG, palette": lambda p: saved(_palette(p), "PNG"),
    "PNG, palette, transparency": lambda p: saved(_palette(p), "PNG", transparency=0),
    "PNG, RGB": lambda p: saved(p, "PNG", compress_level=1),
    "PNG, RGB, turned": lambda p: saved(p, "PNG", compress_level=1, exif=_tags()),
    "PNG, RGB, transparency": lambda p: saved(p, "PNG", transparency=(0, 0, 0)),
    "PNG, RGB, profile": lambda p: saved(p, "PNG", icc_profile=bytes(2**20 - 64)),
    "PNG, RGBA": lambda p: saved(_with_alpha(p), "PNG", compress_level=1),
    "JPEG": lambda p: saved(p, "JPEG"),
    "JPEG, grey": lambda p: saved(p.convert("L"), "JPEG"),
    "JPEG, turned": lambda p: saved(p, "JPEG", exif=_tags()),
    "JPEG, profile": lambda p: saved(p, "JPEG", icc_profile=bytes(16 * MIB)),
    "JPEG, CMYK": lambda p: saved(p.convert("CMYK"), "JPEG"),
    "JPEG, progressive": lambda p: saved(p, "JPEG", progressive=True),
    "JPEG, progressive, 4:4:4": lambda p: saved(p, "JPEG", progressive=True, subsampling=0),
    "JPEG, progressive, grey": lambda p: saved(p.convert("L"), "JPEG", progressive=True),
    "JPEG, progressive, CMYK": lambda p: saved(p.convert("CMYK"), "JPEG", progressive=True),
    "WebP": lambda p: saved(p, "WEBP", method=0),
    "WebP, turned": lambda p: saved(p, "WEBP", method=0, exif=_tags()),
    "WebP, alpha": lambda p: saved(_with_alpha(p), "WEBP", method=0),
    "WebP, lossless": lambda p: saved(p, "WEBP", method=0, lossless=True),
    "WebP, lossless, alpha": lambda p: saved(_with_alpha(p), "WEBP", method=0, lossless=True),
    "WebP, animated": lambda p: saved(
        p, "WEBP", method=0, save_all=True, append_images=[PIL.Image.new("RGB", p.size)]
    ),
    "GIF": lambda p: saved(_palette(p), "GIF"),
    "GIF, not interlaced": lambda p: saved(_palette(p), "GIF", interlace=0),
    "GIF, transparency": lambda p: saved(_palette(p), "GIF", transparency=0),
    "GIF, animated": lambda p: saved(
        _palette(p),
        "GIF",
        save_all=True,
        disposal=2,
        append_images=[_palette(PIL.Image.new("RGB", p.size))],
    ),
    "BMP, 1 bit": lambda p: saved(p.convert("1"), "BMP"),
    "BMP, palette": lambda p: saved(_palette(p), "BMP"),
}
"""Files of every format, each by a function of the picture that it shows."""


def measured(kind: str, size: tuple[int, int] = COSTS_SIZE) -> Measured:
    """Return what a process takes for one file, with checking, decoding and hashing it."""
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder, name)) for name in ("small", "large")]
        for name, picture in zip(names, (drawn(64, 48), drawn(*size)), strict=True):
            Path(name).write_bytes(KINDS[kind](picture))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *names], capture_output=True, text=True, check=True
        )
    peak_bytes, stated_bytes = map(int, done.stdout.split())
    return Measured(peak_bytes, stated_bytes)


def process_ids(parent: int) -> list[int]:
    """Return a process and its children."""
    found = [parent]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent_id = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent_id) == parent and state != "Z":
                found.append(int(stat.parent.name))
    return found


def resident_bytes(ids: list[int]) -> int:
    """Return the memory of some processes; one that is gone has none."""
    total = 0
    for each in ids:
        with suppress(OSError, TypeError):
            status = Path(f"/proc/{each}/status").read_text()
            total += int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
    return total


class Peak:
    """The most memory that the processes of a server have while this is open."""

    def __init__(self, process_id: int) -> None:
        self._ids = process_ids(process_id)
        self.num_bytes = resident_bytes(self._ids)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_closed.wait(0.005):
            self.num_bytes = max(self.num_bytes, resident_bytes(self._ids))


@contextmanager
def served(num_renderers: int) -> Iterator[tuple[int, str]]:
    """Yield the process and the address of a server in front of the mock."""
    given = {"server.port": 0, "server.num_renderers": num_renderers}
    words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vlmkit", "serve", "mock", *words], stderr=log
        )
        try:
            yield process.pid, _address(log)
        finally:
            process.terminate()
            process.wait()


def _address(log: Any) -> str:
    while True:
        log.seek(0)
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read()):
            with suppress(OSError), urllib.request.urlopen(f"{found[0]}/readyz"):
                return found[0]
        time.sleep(0.2)


def body_of(content: bytes) -> bytes:
    """Return a request that shows one file."""
    url = f"data:image/png;base64,{b64encode(content).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": parts}]
    return json.dumps({"model": "mock", "max_tokens": 4, "messages": messages}).encode()


def status_of(url: str, body: bytes) -> int:
    """Send a request and return the status of its answer."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def twelve(kind: str, num_renderers: int) -> None:
    """Print what a server takes for twelve large files at once."""
    side = LARGE_SIDE
    body = body_of(KINDS[kind](PIL.Image.new("RGB", (side, side), "teal")))
    with served(num_renderers) as (process_id, url):
        status_of(url, body_of(KINDS[kind](drawn(64, 48))))
        before = resident_bytes(process_ids(process_id))
        with Peak(process_id) as peak, ThreadPoolExecutor(NUM_AT_ONCE) as clients:
            answers = Counter(clients.map(status_of, [url] * NUM_AT_ONCE, [body] * NUM_AT_ONCE))
        time.sleep(3)
        after = resident_bytes(process_ids(process_id))
    shown = [f"{each / MIB:7.0f}" for each in (before, peak.num_bytes, after)]
    print(f"{kind:28} {num_renderers}", *shown, dict(answers), flush=True)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["costs", "twelve"])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--num-renderers", nargs="*", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    for kind in given.kinds:
        if given.what == "costs":
            num_pixels = COSTS_SIZE[0] * COSTS_SIZE[1]
            peak, stated = measured(kind)
            print(f"{kind:28} {peak / num_pixels:6.2f} {stated / num_pixels:6.2f}", flush=True)
        else:
            for num_renderers in given.num_renderers:
                twelve(kind, num_renderers)


if __name__ == "__main__":
    main()
