"""Compares the memory that ``vlmkit plan`` states with the peak memory of a served model.

For each model and context, a server answers several requests at once, each with an image of its own
and a prompt that fills the context. It does so twice, so that caches and allocators are full. The
peak is the kernel's (``VmHWM``), summed over all processes of the server, so this needs Linux. The
cache has as many tokens as the load, because a larger one also fills with earlier prompts.

The models are the demo and random ones of the test zoo's families (:mod:`plan_models`).

    PYTHONPATH=tests python benchmarks/plan_memory.py --models demo demo:torch llava qwen2_vl
"""

import argparse
import base64
import io
import json
import random
import re
import string
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image
import plan_models
import tables

ANSWER_TOKENS = 64  # packing of linear layers takes a step for each group of them
NUM_ROUNDS = 2
MIB = 2**20
CLI = (sys.executable, "-m", "vlmkit")
CONTEXTS = {"demo": (256, 960)}
LONG_CONTEXTS = (1024, 2560)


class Load(NamedTuple):
    """A served model, and the requests that it gets.

    Attributes:
        model: a packaged model or a folder.
        settings: settings of the server.
        context: tokens of each sequence.
        num: sequences at once.
        size: width and height of the image of each request.
    """

    model: str
    settings: list[str]
    context: int
    num: int
    size: tuple[int, int]

    @property
    def options(self) -> list[str]:
        """The settings as options of a command."""
        return [word for setting in self.settings for word in ("--set", setting)]


class Server:
    """A served model."""

    def __init__(self, load: Load) -> None:
        command = [*CLI, "serve", load.model, "--port", "0", *load.options]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found[1]
            if " is ready" in line:
                break
        else:
            raise SystemExit("".join(lines))
        self._reader = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._reader.start()
        with urllib.request.urlopen(f"{self.url}/v1/models") as answer:
            self._name = json.load(answer)["data"][0]["id"]

    def peaks(self) -> dict[str, int]:
        """Return the most memory that each process had, by its command."""
        return {_command(pid): _peak_bytes(pid) for pid in _tree(self._process.pid)}

    def ask(self, text: str, image: str, max_tokens: int = ANSWER_TOKENS) -> dict[str, int]:
        """Return the usage of an answer."""
        content = [
            {"type": "image_url", "image_url": {"url": image}},
            {"type": "text", "text": text},
        ]
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
        body |= {"max_tokens": max_tokens, "ignore_eos": True, "model": self._name}
        headers = {"Content-Type": "application/json"}
        url = f"{self.url}/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=1800) as answer:
            return json.load(answer)["usage"]

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        self._process.stderr.close()


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and all processes below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _tree(int(child))


def _command(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    named = next((each for each in words if each.startswith("vlmkit.")), "server")
    return f"{named} {pid}"


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024


def picture(size: tuple[int, int], seed: int) -> str:
    """Return the address of a picture of coarse noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 16, size[0] // 16, 3))
    file = io.BytesIO()
    PIL.Image.fromarray(noise.astype(np.uint8)).resize(size).save(file, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def words(num: int, seed: int) -> str:
    """Return a text of random words that no other prompt begins with."""
    chosen = random.Random(seed)
    return " ".join("".join(chosen.choices(string.ascii_lowercase, k=4)) for _ in range(num))


def fitting_words(server: Server, load: Load) -> list[str]:
    """Return a text for each request of all rounds that fills the context."""
    image = picture(load.size, 99)
    few, more = (server.ask(words(num, 1), image, 1)["prompt_tokens"] for num in (8, 40))
    room = load.context - ANSWER_TOKENS - few
    num = max(1, int(room / ((more - few) / 32) * 0.96))
    return [words(num, seed) for seed in range(load.num * NUM_ROUNDS)]


def measured(load: Load) -> tuple[dict[str, int], int]:
    """Return the peak memory of each process under the load, and the longest sequence."""
    server = Server(load)
    try:
        texts = fitting_words(server, load)
        images = [picture(load.size, seed) for seed in range(len(texts))]
        with ThreadPoolExecutor(load.num) as clients:
            usages = list(clients.map(server.ask, texts, images))
        return server.peaks(), max(usage["total_tokens"] for usage in usages)
    finally:
        server.close()


def planned(load: Load) -> dict:
    """Return the plan for the load."""
    width, height = load.size
    flags = ["--context", str(load.context), "--sequences", str(load.num)]
    flags += ["--image", f"{width}x{height}", "--json"]
    command = [*CLI, "plan", load.model, *flags, *load.options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def resolved(name: str, folder: Path) -> tuple[str, list[str]]:
    """Return a model and the settings of its engine."""
    name, _, engine = name.partition(":")
    use = engine or ("onnx" if name == "demo" else "torch")
    settings = [f"engine.use={use}", f"media_encoder.use={use}"]
    if name in plan_models.LARGER:
        return str(plan_models.save(name, folder / name)), settings
    return name, settings


def write_details(plan: dict, peaks: dict[str, int]) -> None:
    """Print each need and each process."""
    for need in plan["needs"]:
        size = need["num_bytes"] / MIB
        print(f"    {need['component']:15}{need['name']:32}{size:8.1f}  {need['detail']}")
    for command, num_bytes in peaks.items():
        print(f"    {command:47}{num_bytes / MIB:8.1f}", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["demo", "demo:torch", *plan_models.LARGER]
    parser.add_argument("--models", nargs="+", default=names)
    parser.add_argument("--contexts", type=int, nargs="+")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--image", default="336x224")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "vlmkit-plan-models"
    )
    parser.add_argument("--details", action="store_true", help="print needs and processes, too")
    args = parser.parse_args()
    size = tuple(map(int, args.image.split("x")))
    rows = []
    for name in args.models:
        model, settings = resolved(name, args.folder)
        for context in args.contexts or CONTEXTS.get(model, LONG_CONTEXTS):
            cache = f"engine.cache_tokens={context * args.sequences}"
            load = Load(model, [*settings, cache], context, args.sequences, size)
            plan = planned(load)
            stated = next(e["num_bytes"] for e in plan["totals"] if e["device"] == "cpu")
            peaks, longest = measured(load)
            peak = sum(peaks.values())
            row = [name, str(context), str(longest), f"{stated / MIB:.0f}", f"{peak / MIB:.0f}"]
            rows.append([*row, f"{stated / peak - 1:+.1%}"])
            print(rows[-1], flush=True)
            if args.details:
                write_details(plan, peaks)
    columns = ("model", "context", "longest", "planned MiB", "peak MiB", "deviation")
    print(tables.markdown(columns, rows))


if __name__ == "__main__":
    main()
