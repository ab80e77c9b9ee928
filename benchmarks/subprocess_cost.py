"""The CPU time that a runner in another process adds to requests, tokens and images, on the mock.

The mock's engine takes no time, so what differs between the two runners is the way of requests and
chunks between the processes. CPU time is that of this process and of the other one: the child of
``subprocess``, or the worker of ``grpc``.
Both runners are measured in turn, in alternating order, and the table has medians of the rounds.

    python benchmarks/subprocess_cost.py --rounds 7
    python benchmarks/subprocess_cost.py --runner grpc
"""

import argparse
import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import PIL.Image
import tables

import vlmkit
from vlmkit.running.subprocess_runner.runner import SubprocessRunner

AT_ONCE = (1, 8, 64)
LIMITS = {"subprocess": ("1.00 ms", "40.0 us"), "grpc": ("4.00 ms", "60.0 us")}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


PIDS: dict[int, int] = {}
"""The other process of a model, by the id of the model."""


def cpu_s(model: vlmkit.Model) -> float:
    """Return the CPU time of this process and of the other one so far."""
    total = time.process_time()
    if (pid := PIDS.get(id(model))) is not None:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return total


@contextmanager
def elsewhere(runner: str) -> Iterator[vlmkit.Model]:
    """Load the mock in another process."""
    if runner == "subprocess":
        with vlmkit.load("mock", runner={"use": "subprocess"}) as model:
            assert isinstance(model.runner, SubprocessRunner)
            PIDS[id(model)] = model.runner.pid or 0
            yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vlmkit", "worker", "mock"]
        listen = ["--listen", f"unix:{folder}/worker.sock"]
        with subprocess.Popen([*command, *listen], stderr=subprocess.DEVNULL) as worker:
            try:
                with vlmkit.load(f"grpc://{folder}/worker.sock") as model:
                    PIDS[id(model)] = worker.pid
                    yield model
            finally:
                worker.terminate()


async def read_answer(model: vlmkit.Model, num_tokens: int, *images: bytes) -> None:
    """Read an answer of so many tokens."""
    prompt = json.dumps({"mock": {"text": "x", "tokens": num_tokens}})
    request = model.request(prompt, images=images, max_tokens=num_tokens)
    stream = await model.runner.asubmit(request, lambda _: None)
    while await stream.next_chunks():
        pass


def noise(chance: np.random.Generator, side: int) -> bytes:
    """Return a PNG file that is as large as its pixels."""
    content = io.BytesIO()
    pixels = chance.integers(256, size=(side, side, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(content, "PNG", compress_level=1)
    return content.getvalue()


def image_costs(models: Sequence[vlmkit.Model], num_rounds: int, side: int) -> tuple[str, ...]:
    """Return the size of an image, and what its way adds for each megabyte."""
    chance = np.random.default_rng(side)
    cpu_differences, waits = [], []
    for number in range(num_rounds):
        order = models if number % 2 else models[::-1]
        image, used_s, waited_s = noise(chance, side), {}, {}
        for model in order:
            before, began_s = cpu_s(model), time.perf_counter()
            for _ in range(20):
                asyncio.run(read_answer(model, 1, image))
            waited_s[id(model)] = time.perf_counter() - began_s
            time.sleep(0.1)
            used_s[id(model)] = cpu_s(model) - before
        megabytes = 20 * len(image) / 1e6
        here, there = map(id, models)
        cpu_differences.append((used_s[there] - used_s[here]) / megabytes)
        waits.append((waited_s[there] - waited_s[here]) / megabytes)
    cpu_ms, wait_ms = (1e3 * statistics.median(each) for each in (cpu_differences, waits))
    return f"{len(image) / 1e6:.1f} MB", f"{cpu_ms:.2f} ms", f"{wait_ms:.2f} ms"


async def run_load(model: vlmkit.Model, num_requests: int, num_tokens: int, at_once: int) -> None:
    """Send requests, with so many at once."""
    waiting = iter(range(num_requests))

    async def client() -> None:
        for _ in waiting:
            await read_answer(model, num_tokens)

    await asyncio.gather(*[client() for _ in range(at_once)])


def measured_s(model: vlmkit.Model, *load: int) -> float:
    """Return the CPU time of a load."""
    before = cpu_s(model)
    asyncio.run(run_load(model, *load))
    time.sleep(0.1)  # the last messages of the child
    return cpu_s(model) - before


def added_s(models: Sequence[vlmkit.Model], num_rounds: int, *load: int) -> float:
    """Return the median CPU time that the second model adds to a load of the first one."""
    differences = []
    for number in range(num_rounds):
        order = models if number % 2 else models[::-1]
        used_s = {id(model): measured_s(model, *load) for model in order}
        differences.append(used_s[id(models[1])] - used_s[id(models[0])])
    return statistics.median(differences)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=400, help="of one token, in a round")
    parser.add_argument("--tokens", type=int, default=20_000, help="of all answers, in a round")
    parser.add_argument("--runner", choices=LIMITS, default="subprocess")
    args = parser.parse_args()
    rows = []
    with vlmkit.load("mock") as here, elsewhere(args.runner) as there:
        for model in (here, there):
            measured_s(model, 64, 10, 8)  # warms up
        for at_once in AT_ONCE:
            models = (here, there)
            request_s = added_s(models, args.rounds, args.requests, 1, at_once) / args.requests
            num_each = args.tokens // at_once
            answers_s = added_s(models, args.rounds, at_once, num_each, at_once)
            token_s = (answers_s - at_once * request_s) / (at_once * num_each)
            rows.append((str(at_once), f"{request_s * 1e3:.2f} ms", f"{token_s * 1e6:.1f} us"))
        images = [image_costs((here, there), args.rounds, side) for side in (400, 850, 1700)]
    rows.append(("limit", *LIMITS[args.runner]))
    print(tables.markdown(("requests at once", "added for a request", "added for a token"), rows))
    print()
    print(tables.markdown(("image", "added CPU time for a MB", "added wait for a MB"), images))


if __name__ == "__main__":
    main()
