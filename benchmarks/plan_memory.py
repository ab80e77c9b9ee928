"""Compares the memory that ``vlmkit plan`` states with the peak memory of a served model.

For each model and context, a server answers several requests at once, each with an image of its own
and a prompt that fills the context. The peak is the kernel's (``VmHWM``), so this needs Linux. The
models are the demo, tiny random models of the test zoo, whose memory is mostly that of libraries,
and larger random ones.

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import image_shapes
import numpy as np
import PIL.Image
import tables

from zoo import NAMES_VISION
from zoo.save import save

ANSWER_TOKENS = 24
MIB = 2**20
CLI = (sys.executable, "-m", "vlmkit")
FAMILIES = (
    *("llava", "llava_next", "qwen2_vl", "qwen2_5_vl", "idefics3", "smolvlm", "internvl"),
    *("gemma3", "mistral3", "paligemma", "glm4v", "qwen3_vl"),
)


class Server:
    """A served model."""

    def __init__(self, model: str, settings: list[str]) -> None:
        more = [word for setting in settings for word in ("--set", setting)]
        command = [*CLI, "serve", model, "--port", "0", *more]
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
        threading.Thread(target=self._process.stderr.read, daemon=True).start()

    def peak_bytes(self) -> int:
        """Return the most memory that the process had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024

    def ask(self, text: str, image: str | None, max_tokens: int = ANSWER_TOKENS) -> dict:
        """Return the usage of an answer."""
        content = [{"type": "text", "text": text}]
        if image is not None:
            content.insert(0, {"type": "image_url", "image_url": {"url": image}})
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
        body |= {"max_tokens": max_tokens, "ignore_eos": True, "model": self._name()}
        return self._post("/v1/chat/completions", body)["usage"]

    def _name(self) -> str:
        with urllib.request.urlopen(f"{self.url}/v1/models") as answer:
            return json.load(answer)["data"][0]["id"]

    def _post(self, path: str, body: dict) -> dict:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=1800) as answer:
            return json.load(answer)

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()


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


def fitting_words(server: Server, context: int, image: str) -> int:
    """Return how many words fill a context."""
    few, more = (server.ask(words(num, 1), image, 1)["prompt_tokens"] for num in (8, 40))
    return max(1, int((context - ANSWER_TOKENS - few) / ((more - few) / 32)) + 2)


def measured(model: str, settings: list[str], context: int, num: int, size: tuple) -> int:
    """Return the peak memory of a server under the load."""
    server = Server(model, settings)
    try:
        num_words = fitting_words(server, context, picture(size, 99))
        with ThreadPoolExecutor(num) as clients:
            usages = list(
                clients.map(
                    lambda seed: server.ask(words(num_words, seed), picture(size, seed)), range(num)
                )
            )
        longest = max(usage["total_tokens"] for usage in usages)
        if not 0.9 * context < longest <= context:
            print(f"  {model}: {longest} tokens of {context}", flush=True)
        return server.peak_bytes()
    finally:
        server.close()


def planned(model: str, settings: list[str], context: int, num: int, size: tuple) -> dict:
    """Return the plan for the load."""
    more = [word for setting in settings for word in ("--set", setting)]
    load = ["--context", str(context), "--sequences", str(num), "--image", f"{size[0]}x{size[1]}"]
    command = [*CLI, "plan", model, *load, "--json", *more]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def resolved(name: str, folder: Path) -> tuple[str, list[str]]:
    """Return a model and the settings of its engine."""
    name, _, engine = name.partition(":")
    use = engine or ("onnx" if name == "demo" else "torch")
    settings = [f"engine.use={use}", f"media_encoder.use={use}"]
    if name in image_shapes.IMAGE_SHAPES:
        return str(image_shapes.save(name, folder / name)), settings
    if name in NAMES_VISION and not (folder / name / "config.json").is_file():
        save(name, folder / name)
    return (str(folder / name) if name in NAMES_VISION else name), settings


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["demo", "demo:torch", *FAMILIES])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 960])
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--image", default="336x224")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "plan-models")
    args = parser.parse_args()
    size = tuple(map(int, args.image.split("x")))
    rows = []
    for name in args.models:
        model, settings = resolved(name, args.folder)
        for context in args.contexts:
            load = (model, settings, context, args.sequences, size)
            plan = planned(*load)
            stated = next(e["num_bytes"] for e in plan["totals"] if e["device"] == "cpu")
            peak = measured(*load)
            deviation = stated / peak - 1
            row = [name, str(context), f"{stated / MIB:.0f}", f"{peak / MIB:.0f}"]
            rows.append([*row, f"{deviation:+.1%}"])
            print(rows[-1], flush=True)
    print(tables.markdown(("model", "context", "planned MiB", "peak MiB", "deviation"), rows))


if __name__ == "__main__":
    main()
