"""Measures renderers: pages a second, health checks and streams during image decoding.

    python benchmarks/renderers.py [MODEL]

It runs servers with 0, 1 and 2 renderers in turn, with the mock unless a model is named. Figures
are medians of several repeats, and vary with other load of the machine.
"""

import asyncio
import base64
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import PIL.Image

NUM_PAGES, NUM_AT_ONCE = 24, 8
PAGE, LARGE = (1240, 1754), (7070, 7070)


def image(size: tuple[int, int], seed: int) -> str:
    """Return a data: URL of a JPEG that costs as much as a photograph: noise on a gradient."""
    width, height = size
    noise = np.random.default_rng(seed).integers(0, 255, (height // 8, width // 8, 3), np.uint8)
    content = io.BytesIO()
    PIL.Image.fromarray(noise).resize(size).save(content, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()


def body(model: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    """Return a request."""
    content = list(parts)
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


def shown(url: str) -> dict[str, Any]:
    """Return an image part."""
    return {"type": "image_url", "image_url": {"url": url}}


@contextmanager
def server(model: str, num_renderers: int, *settings: str) -> Iterator[str]:
    """Run a server; yields its address."""
    settings = ("server.port=0", f"server.num_renderers={num_renderers}", *settings)
    words = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "vlmkit", "serve", model, *words]
        process = subprocess.Popen(command, stderr=log)
        try:
            found = None
            while found is None:
                time.sleep(0.1)
                log.seek(0)
                found = re.search(r"listening on (\S+)\n", log.read())
            while httpx2.get(f"{found[1]}/readyz").status_code != 200:
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()
            process.wait()


async def post(http: httpx2.AsyncClient, url: str, asked: dict[str, Any]) -> float:
    """Send a request, and return the time of the answer."""
    began = time.perf_counter()
    answer = await http.post(f"{url}/v1/chat/completions", json=asked)
    answer.raise_for_status()
    return time.perf_counter() - began


async def beats(http: httpx2.AsyncClient, url: str, done: asyncio.Event) -> list[float]:
    """Return the times of health checks, ten in a second."""
    took = []
    while not done.is_set():
        began = time.perf_counter()
        (await http.get(f"{url}/healthz")).raise_for_status()
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.1)
    return took


async def tokens(
    http: httpx2.AsyncClient, url: str, model: str, done: asyncio.Event
) -> tuple[int, float]:
    """Return the number of text chunks, and their time."""
    num, began = 0, time.perf_counter()
    script = json.dumps({"mock": {"text": "word ", "tokens": 30_000, "latency_s": 0.002}})
    text = {"type": "text", "text": script if model == "mock" else "Tell a long story."}
    asked = body(model, text, stream=True)
    async with http.stream("POST", f"{url}/v1/chat/completions", json=asked) as answer:
        async for line in answer.aiter_lines():
            num += line.startswith("data: {")
            if done.is_set():
                break
    return num, time.perf_counter() - began


async def measured(url: str, model: str) -> dict[str, float]:
    """Return all figures of one server."""
    limits = httpx2.Limits(max_connections=64)
    async with httpx2.AsyncClient(timeout=600, limits=limits) as http:
        text = body(model, {"type": "text", "text": "hello"}, max_tokens=1)
        one = [body(model, shown(image(PAGE, seed)), max_tokens=1) for seed in range(NUM_PAGES)]
        large = [body(model, shown(image(LARGE, 99 + n)), max_tokens=1) for n in range(8)]
        await post(http, url, text)
        texts = [await post(http, url, text) for _ in range(60)]
        alone = [await post(http, url, asked) for asked in one[:8]]
        turns = asyncio.Semaphore(NUM_AT_ONCE)

        async def page(asked: dict[str, Any]) -> None:
            async with turns:
                await post(http, url, asked)

        began = time.perf_counter()
        await asyncio.gather(*map(page, one))
        pages_s = NUM_PAGES / (time.perf_counter() - began)
        still, busy = asyncio.Event(), asyncio.Event()
        stream = asyncio.ensure_future(tokens(http, url, model, still))
        await asyncio.sleep(3)
        still.set()
        num, took = await stream
        quiet = num / took
        health = asyncio.ensure_future(beats(http, url, busy))
        stream = asyncio.ensure_future(tokens(http, url, model, busy))
        await asyncio.sleep(0.2)
        began = time.perf_counter()
        await asyncio.gather(*(post(http, url, asked) for asked in large))
        large_s = time.perf_counter() - began
        busy.set()
        num, took = await stream
        latencies = sorted(await health)
        return {
            "a text, ms": 1e3 * statistics.median(texts),
            "a page, ms": 1e3 * statistics.median(alone),
            "pages/s": pages_s,
            "8 x 50 Mpx, s": large_s,
            "healthz median, ms": 1e3 * statistics.median(latencies),
            "healthz worst, ms": 1e3 * latencies[-1],
            "chunks/s quiet": quiet,
            "chunks/s meanwhile": num / took,
        }


def main() -> None:
    """Print a row for each figure, a column for each number of renderers."""
    model = sys.argv[1] if len(sys.argv) > 1 else "mock"
    columns = []
    for num in (0, 1, 2):
        with server(model, num) as url:
            columns.append(asyncio.run(measured(url, Path(model).name)))
    print(f"{'renderers':20}", *(f"{num:>9}" for num in (0, 1, 2)))
    for name in columns[0]:
        print(f"{name:20}", *(f"{column[name]:9.2f}" for column in columns))


if __name__ == "__main__":
    main()
