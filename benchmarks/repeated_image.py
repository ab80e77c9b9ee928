"""Measures a question about an image that was shown before, with and without the image cache.

    python benchmarks/repeated_image.py [MODEL]

Both servers run at once, and requests alternate between them. Each image is first shown once. Both
servers keep its features, so the difference is decoding and preprocessing.
"""

import asyncio
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import tables
from renderers import body, image, server, shown

SIZES = (640, 480), (1280, 960), (2560, 1920), (4000, 3000)
ROUNDS = 15


async def measure(model: str, addresses: list[str]) -> list[list[str]]:
    """Return a row for each size: the median time of both servers, and their ratio."""
    rows = []
    async with httpx2.AsyncClient(timeout=600) as client:
        for size in SIZES:
            asked = body(
                Path(model).name, shown(image(size, 1)), {"type": "text", "text": "?"}, max_tokens=1
            )
            taken: list[list[float]] = [[], []]
            for number in range(ROUNDS + 1):
                for found, address in zip(taken, addresses, strict=True):
                    began_s = time.perf_counter()
                    answer = await client.post(f"{address}/v1/chat/completions", json=asked)
                    answer.raise_for_status()
                    if number:
                        found.append(time.perf_counter() - began_s)
            without, cached = map(statistics.median, taken)
            times = [f"{1000 * each:.1f}" for each in (without, cached)]
            rows.append([f"{size[0]}x{size[1]}", *times, f"{without / cached:.1f}"])
    return rows


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "demo"
    for num_renderers in (0, 1):
        with ExitStack() as stack:
            addresses = [
                stack.enter_context(server(model, num_renderers, f"pipeline.image_cache_bytes={n}"))
                for n in (0, 2**28)
            ]
            rows = asyncio.run(measure(model, addresses))
        print(f"{num_renderers} renderers")
        print(tables.markdown(["image", "no cache (ms)", "cache (ms)", "ratio"], rows), flush=True)


if __name__ == "__main__":
    main()
