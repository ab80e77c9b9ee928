"""vlmkit-llama against the library's own server: one file, one build of the library, through HTTP.

Both servers run at once, and are asked in turn, so that noise of the machine meets both. The server
of the other side is that of the package xllamacpp, whose library vlmkit-llama uses. Ratios above 1
are in our favour.

    python benchmarks/llama_server.py model.gguf --rounds 5 --threads 1

Prints tokens per second with one client and with several, the time to the first text after prompts
of 512 tokens, and, for a file with a vision tower beside it, that of a new and of a repeated image.
On a machine that computes something else, compare the processor time of a token.
"""

import argparse
import base64
import http.client
import io
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import tables

from vlmkit.kit.single_file import projectors_beside

WORDS = ("the", "sea", "sky", "river", "hill", "town", "animal", "count", "ten", "why", "of", "in")
NUM_TOKENS = 64
LONG_WORDS = 480  # about 512 tokens with those of a template
SIDE = 448  # pixels of an image
CACHE_TOKENS = 8192
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
THEIRS = """
import json, sys
import xllamacpp
file, projector, threads, tokens, slots = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path, params.mmproj.path = file, projector
params.hostnames, params.port = ["127.0.0.1"], 0
params.n_ctx, params.n_parallel, params.kv_unified = tokens, slots, True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
print("address", server.listening_address, flush=True)
sys.stdin.read()
"""


class Server:
    """A server that speaks OpenAI's API, at an address such as ``127.0.0.1:8000``."""

    def __init__(self, address: str, pid: int) -> None:
        self.address, self._pid = address.removeprefix("http://"), pid
        listed = urllib.request.urlopen(f"http://{self.address}/v1/models", timeout=60)
        self._model = json.load(listed)["data"][0]["id"]

    def cpu_s(self) -> float:
        """Return the processor time of its processes so far."""
        return sum(map(own_cpu_s, [self._pid, *children_of(self._pid)]))

    def ask(self, content: Any, num_tokens: int) -> tuple[float, int]:
        """Return the seconds to the first text of an answer, and its number of tokens."""
        host, port = self.address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=900)
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began_s, first_s, usage = time.perf_counter(), None, None
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            if first_s is None and any(c["delta"].get("content") for c in chunk.get("choices", ())):
                first_s = time.perf_counter() - began_s
        connection.close()
        if usage is None:
            raise SystemExit(f"{self.address} answered without a usage")
        whole_s = time.perf_counter() - began_s
        return whole_s if first_s is None else first_s, usage["completion_tokens"]


def own_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def children_of(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            yield child
            yield from children_of(child)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@contextmanager
def ours(file: Path, threads: int, clients: int, more: Sequence[str]) -> Iterator[Server]:
    """Serve a file with vlmkit."""
    port = free_port()
    command = [sys.executable, "-m", "vlmkit", "serve", str(file), "--port", str(port), *more]
    for name, value in {
        "engine.use": "llama",
        "engine.num_threads": threads,
        "engine.cache_tokens": CACHE_TOKENS,
        "engine.max_sequences": max(8, clients),
    }.items():
        command += ["--set", f"{name}={value}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as child:
        try:
            while child.poll() is None and not is_ready(port):
                time.sleep(0.2)
            yield Server(f"127.0.0.1:{port}", child.pid)
        finally:
            child.terminate()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def theirs(file: Path, threads: int, clients: int) -> Iterator[Server]:
    """Serve a file with the library's own server."""
    projector = next(map(str, projectors_beside(file)), "")
    given = json.dumps([str(file), projector, threads, CACHE_TOKENS, max(8, clients)])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", THEIRS, given], text=True, **pipes) as child:
        assert child.stdout is not None
        try:
            line = next(line for line in child.stdout if line.startswith("address"))
            yield Server(line.split()[1], child.pid)
        finally:
            child.kill()


# What is measured: each returns a number, of which more is better


def rate(server: Server, clients: int, dice: random.Random) -> float:
    """Return tokens per second of answers to short questions."""
    counts: list[int] = []

    def ask(text: str) -> None:
        counts.append(server.ask(text, NUM_TOKENS)[1])

    threads = [threading.Thread(target=ask, args=(words(dice, 12),)) for _ in range(clients)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began_s)


def tokens_per_cpu_s(server: Server, clients: int, dice: random.Random) -> float:
    """Return tokens per second of processor time."""
    before_s, num_tokens = server.cpu_s(), clients * NUM_TOKENS
    rate(server, clients, dice)
    return num_tokens / (server.cpu_s() - before_s)


def long_prompt(server: Server, dice: random.Random) -> float:
    """Return 1 / seconds to the first text after a long prompt."""
    return 1 / server.ask(words(dice, LONG_WORDS), 4)[0]


def new_image(server: Server, dice: random.Random) -> float:
    """Return 1 / seconds to the first text about an image that is new."""
    return 1 / server.ask(about(drawn(dice.randrange(10**9)), words(dice, 4)), 4)[0]


def repeated_image(server: Server, dice: random.Random) -> float:
    """Return the same for an image that was seen, with another question."""
    return 1 / server.ask(about(drawn(0), words(dice, 4)), 4)[0]


def words(dice: random.Random, num: int) -> str:
    return " ".join(dice.choices(WORDS, k=num))


def drawn(seed: int) -> str:
    """Return an image as a data URL."""
    pixels = np.random.default_rng(seed).integers(0, 255, (SIDE // 16, SIDE // 16, 3), np.uint8)
    written = io.BytesIO()
    PIL.Image.fromarray(pixels).resize((SIDE, SIDE)).save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def about(image: str, text: str) -> list[dict[str, object]]:
    return [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": text}]


def main() -> None:
    """Measure both servers in turn, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="a GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--set", action="append", default=[], help="further settings of vlmkit")
    given = parser.parse_args()
    measures: dict[str, Callable[[Server, random.Random], float]] = {
        f"tokens/s, {num} clients": partial(rate, clients=num) for num in given.clients
    }
    for num in given.clients:
        measures[f"tokens/s of processor time, {num} clients"] = partial(
            tokens_per_cpu_s, clients=num
        )
    measures["1/s to the first text, 512 tokens"] = long_prompt
    if projectors_beside(given.file):
        measures["1/s to the first text, new image"] = new_image
        measures["1/s to the first text, repeated image"] = repeated_image
    more = [part for setting in given.set for part in ("--set", setting)]
    most = max(given.clients)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in measures}
    with (
        ours(given.file, given.threads, most, more) as own,
        theirs(given.file, given.threads, most) as other,
    ):
        for number in range(-1, given.rounds):  # the first round warms up
            for name, measure in measures.items():
                seed = f"{number} {name}"  # other prompts for each, and the same for both servers
                pair = [measure(server, dice=random.Random(seed)) for server in (own, other)]
                if number >= 0:
                    found[name].append((pair[0], pair[1]))
    rows = []
    for name, pairs in found.items():
        left, right = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratios = sorted(one / two for one, two in pairs)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        rows.append(
            [name, f"{left:.2f}", f"{right:.2f}", f"{statistics.median(ratios):.2f}", spread]
        )
    print(tables.markdown(["", "vlmkit", "library", "ratio", "of rounds"], rows))


if __name__ == "__main__":
    main()
