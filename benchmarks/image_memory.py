"""Measures the memory of image decoding: of one file by format, and of twelve large files at once.

    python benchmarks/image_memory.py costs
    python benchmarks/image_memory.py twelve --num-renderers 0 1 2

``costs`` prints the measured peak of each kind of file and the estimate of
:mod:`vlmkit.image_files.decode_cost`, in bytes a pixel. ``twelve`` sends twelve images of 49
million pixels at once to a server, and prints the memory of all its processes before, at the peak
and after, in MiB. Linux only.
"""

import argparse
import io
import json
import re
import struct
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
import re, resource, sys
from pathlib import Path
from vlmkit.types.image import Image
from vlmkit.settings.images import ImageLimits

def status(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

small, large = (Path(name).read_bytes() for name in sys.argv[1:])
Image.open(small).to_pil()
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
image = Image.open(large, ImageLimits(max_bytes=2**30))
picture = image.to_pil()
image.digest
decoders = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(status("VmHWM") - before + decoders, image.cost.peak_bytes)
"""


class Measured(NamedTuple):
    """The measured peak of one file and its estimate, in bytes."""

    peak_bytes: int
    stated_bytes: int


def drawn(width: int, height: int) -> PIL.Image.Image:
    """Return an image that no format compresses to nothing."""
    shade = PIL.Image.linear_gradient("L").resize((width, height), PIL.Image.Resampling.NEAREST)
    ways = [shade, shade.transpose(PIL.Image.Transpose.ROTATE_180), shade.point(lambda x: x * 7)]
    return PIL.Image.merge("RGB", ways)


def saved(image: PIL.Image.Image, kind: str, **options: Any) -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _tags() -> PIL.Image.Exif:
    tags = PIL.Image.Exif()
    tags[0x0112] = 6
    return tags


def _with_alpha(image: PIL.Image.Image) -> PIL.Image.Image:
    made = image.copy()
    made.putalpha(image.getchannel(0))
    return made


def _palette(image: PIL.Image.Image) -> PIL.Image.Image:
    return image.quantize(16, method=PIL.Image.Quantize.FASTOCTREE)


def _wide(image: PIL.Image.Image) -> PIL.Image.Image:
    return image.convert("I").point(lambda x: x * 256).convert("I;16")


def _pages(image: PIL.Image.Image, **options: Any) -> bytes:
    others = [PIL.Image.new("RGB", image.size) for _ in range(3)]
    return saved(image, "TIFF", save_all=True, append_images=others, **options)


def tiled(image: PIL.Image.Image, side: int, *, by_planes: bool = False) -> bytes:
    """Return a TIFF file of uncompressed tiles, which Pillow reads but cannot write."""
    width, height = image.size
    places = [(x, y) for y in range(0, height, side) for x in range(0, width, side)]
    planes = image.split() if by_planes else [image]
    tiles = [
        plane.crop((x, y, x + side, y + side)).tobytes() for plane in planes for x, y in places
    ]
    starts = [8 + sum(map(len, tiles[:1])) * number for number in range(len(tiles))]
    numbers = [starts, [len(tile) for tile in tiles], [8, 8, 8]]
    end = 8 + sum(map(len, tiles))
    arrays = [struct.pack(f"<{len(each)}L", *each) for each in numbers[:2]]
    arrays.append(struct.pack("<4H", *numbers[2], 0))
    at = [end, end + len(arrays[0]), end + len(arrays[0]) + len(arrays[1])]
    if len(tiles) == 1:  # a single number is stored in the directory
        at[0], at[1] = starts[0], len(tiles[0])
    entries = [(256, width), (257, height), (258, at[2]), (259, 1), (262, 2), (277, 3)]
    entries += [(284, 1 + by_planes), (322, side), (323, side), (324, at[0]), (325, at[1])]
    counts = {258: 3, 324: len(tiles), 325: len(tiles)}
    directory = struct.pack("<H", len(entries))
    for tag, value in entries:
        kind = 3 if tag == 258 else 4
        directory += struct.pack("<HHLL", tag, kind, counts.get(tag, 1), value)
    body = b"".join([*tiles, *arrays])
    return b"II*\0" + struct.pack("<L", 8 + len(body)) + body + directory + bytes(4)


def _box(kind: bytes, *content: bytes) -> bytes:
    payload = b"".join(content)
    return struct.pack(">L", 8 + len(payload)) + kind + payload


def grid(image: PIL.Image.Image, side: int = 512) -> bytes:
    """Return an AVIF file of equal tiles, which Pillow reads but cannot write."""
    width, height = image.size
    across, down = -(-width // side), -(-height // side)
    tile = saved(image.resize((side, side)), "AVIF", speed=10, subsampling="4:4:4")
    coder = tile[tile.index(b"av1C") + 4 :][: _length(tile, b"av1C") - 8]
    pixels = tile[tile.index(b"mdat") + 4 :][: _length(tile, b"mdat") - 8]
    layout = struct.pack(">BBBBHH", 0, 0, down - 1, across - 1, width, height)
    ids = range(2, 2 + across * down)
    kinds = [(1, b"grid"), *((each, b"av01") for each in ids)]
    named = [_box(b"infe", b"\2\0\0\0", struct.pack(">HH", n, 0), k + b"\0") for n, k in kinds]
    shown = struct.pack(f">HH{len(ids)}H", 1, len(ids), *ids)
    sizes = [struct.pack(">LLL", 0, *size) for size in ((width, height), (side, side))]
    properties = [_box(b"ispe", size) for size in sizes] + [_box(b"av1C", coder)]
    properties.append(_box(b"pixi", bytes(4), b"\3\x08\x08\x08"))
    owned = struct.pack(">HB2s", 1, 2, b"\1\4")
    owned += b"".join(struct.pack(">HB3s", each, 3, b"\2\x83\4") for each in ids)

    def described(at: int) -> bytes:
        places = [(1, at, len(layout)), *((n, at + len(layout), len(pixels)) for n in ids)]
        located = b"".join(struct.pack(">HHHLL", n, 0, 1, *place) for n, *place in places)
        num = struct.pack(">H", len(kinds))
        return _box(
            b"meta",
            bytes(4),
            _box(b"hdlr", bytes(8), b"pict", bytes(13)),
            _box(b"pitm", bytes(4), struct.pack(">H", 1)),
            _box(b"iloc", bytes(4), b"\x44\0", num, located),
            _box(b"iinf", bytes(4), num, *named),
            _box(b"iref", bytes(4), _box(b"dimg", shown)),
            _box(
                b"iprp",
                _box(b"ipco", *properties),
                _box(b"ipma", bytes(4), struct.pack(">L", len(kinds)), owned),
            ),
        )

    begin = _box(b"ftyp", b"avif", bytes(4), b"avifmif1miafMA1A")
    at = len(begin) + len(described(0)) + 8
    return begin + described(at) + _box(b"mdat", layout, pixels)


def _length(content: bytes, kind: bytes) -> int:
    at = content.index(kind) - 4
    return int.from_bytes(content[at : at + 4], "big")


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
    **{
        f"TIFF, {name}": lambda p, name=name: saved(p, "TIFF", compression=name)  # type: ignore[misc]
        for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "lzma", "zstd")
    },
    **{
        f"TIFF, 1 bit, {name}": lambda p, name=name: saved(p.convert("1"), "TIFF", compression=name)  # type: ignore[misc]
        for name in ("raw", "tiff_ccitt", "group3", "group4")
    },
    "TIFF, grey": lambda p: saved(p.convert("L"), "TIFF", compression="tiff_lzw"),
    "TIFF, 16 bit": lambda p: saved(_wide(p), "TIFF", compression="tiff_lzw"),
    "TIFF, 32 bit": lambda p: saved(p.convert("I"), "TIFF", compression="tiff_lzw"),
    "TIFF, float": lambda p: saved(p.convert("F"), "TIFF", compression="tiff_lzw"),
    "TIFF, palette": lambda p: saved(_palette(p), "TIFF", compression="tiff_lzw"),
    "TIFF, RGBA": lambda p: saved(_with_alpha(p), "TIFF", compression="tiff_lzw"),
    "TIFF, CMYK": lambda p: saved(p.convert("CMYK"), "TIFF", compression="tiff_lzw"),
    "TIFF, YCbCr": lambda p: saved(p.convert("YCbCr"), "TIFF", compression="tiff_lzw"),
    "TIFF, turned": lambda p: saved(p, "TIFF", compression="tiff_lzw", tiffinfo={274: 6}),
    "TIFF, one strip": lambda p: saved(p, "TIFF", compression="tiff_lzw", strip_size=2**30),
    "TIFF, tiles": lambda p: tiled(p, 256),
    "TIFF, tiles of planes": lambda p: tiled(p, 256, by_planes=True),
    "TIFF, pages": lambda p: _pages(p, compression="tiff_lzw"),
    "TIFF, BigTIFF": lambda p: saved(p, "TIFF", compression="tiff_lzw", big_tiff=True),
    "AVIF": lambda p: saved(p, "AVIF", speed=10),
    "AVIF, 4:4:4": lambda p: saved(p, "AVIF", speed=10, subsampling="4:4:4"),
    "AVIF, grey": lambda p: saved(p.convert("L"), "AVIF", speed=10),
    "AVIF, alpha": lambda p: saved(_with_alpha(p), "AVIF", speed=10),
    "AVIF, turned": lambda p: saved(p, "AVIF", speed=10, exif=_tags()),
    "AVIF, grid": grid,
    "AVIF, animated": lambda p: saved(
        p, "AVIF", speed=10, save_all=True, append_images=[PIL.Image.new("RGB", p.size)]
    ),
    "BMP, 1 bit": lambda p: saved(p.convert("1"), "BMP"),
    "BMP, palette": lambda p: saved(_palette(p), "BMP"),
}
"""A file of every format, by a function of its image."""


def measured(kind: str, size: tuple[int, int] = COSTS_SIZE) -> Measured:
    """Return the memory of a process that checks, decodes and hashes one file."""
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder, name)) for name in ("small", "large")]
        for name, image in zip(names, (drawn(64, 48), drawn(*size)), strict=True):
            Path(name).write_bytes(KINDS[kind](image))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *names], capture_output=True, text=True, check=True
        )
    peak_bytes, stated_bytes = map(int, done.stdout.split())
    return Measured(peak_bytes, stated_bytes)


def process_ids(parent: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    parents = {}
    for stat in (entry / "stat" for entry in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [parent]
    for each in found:
        found += [child for child, own in parents.items() if own == each]
    return found


def resident_bytes(ids: list[int]) -> int:
    """Return the memory of processes; a process that ended has none."""
    total = 0
    for each in ids:
        with suppress(OSError, TypeError):
            status = Path(f"/proc/{each}/status").read_text()
            total += int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
    return total


class Peak:
    """The peak memory of the processes of a server while this is open."""

    def __init__(self, process_id: int) -> None:
        self._id = process_id
        self.num_bytes = resident_bytes(process_ids(process_id))
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
            self.num_bytes = max(self.num_bytes, resident_bytes(process_ids(self._id)))


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
    """Return a request with one file."""
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
    """Print the memory of a server for twelve large files at once."""
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
    """Run the chosen measurement."""
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
