"""The throughput of ``generate_many`` and ``vlmkit batch``, relative to the engine's own.

The engine's own throughput is that of all requests submitted at once. Each request is a question
about a picture of its own. The ways are measured in turn on new pictures, in one process and in
alternating order. The table has the medians of the rounds, and the median of the ratios within a
round. The time does not include loading.

    python benchmarks/many_requests.py --requests 200 --rounds 5
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import numpy as np
import PIL.Image
import tables

import vlmkit
from vlmkit_server.apis.batches.batch_file import BatchFile, OutputFile
from vlmkit_server.commands.serve import prepared
from vlmkit_server.offline import OfflineServer, offline_server

QUESTION = "What is in this picture?"
SIZE = 224
REQUIRED = 0.95


def pictures(folder: Path, num: int, seed: int) -> list[Path]:
    """Write distinct pictures and return their paths."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    paths = []
    for number in range(num):
        pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
        pixels[:] = random.integers(256, size=3)
        top, left = random.integers(SIZE // 2, size=2)
        pixels[top : top + SIZE // 3, left : left + SIZE // 3] = random.integers(256, size=3)
        paths.append(folder / f"{number}.png")
        PIL.Image.fromarray(pixels).save(paths[-1])
    return paths


def at_once(model: vlmkit.Model, paths: list[Path], max_tokens: int) -> int:
    """Submit all requests, and return the tokens of their answers."""
    requests = [model.request(QUESTION, images=path, max_tokens=max_tokens) for path in paths]
    streams = [model.submit(request) for request in requests]
    return sum(stream.result().usage.completion_tokens for stream in streams)


def many(model: vlmkit.Model, paths: list[Path], max_tokens: int) -> int:
    """Answer the requests by ``generate_many``, and return the tokens of their answers."""
    asked = ((QUESTION, path) for path in paths)
    results = model.generate_many(asked, max_tokens=max_tokens)
    return sum(result.usage.completion_tokens for result in results)


async def amany(model: vlmkit.Model, paths: list[Path], max_tokens: int) -> int:
    """Answer the requests by ``agenerate_many``, and return the tokens of their answers."""
    asked = ((QUESTION, path) for path in paths)
    results = model.agenerate_many(asked, max_tokens=max_tokens)
    return sum([result.usage.completion_tokens async for result in results])


def write_lines(file: Path, model: str, paths: list[Path], max_tokens: int) -> None:
    """Write a file of requests for ``vlmkit batch``."""
    with file.open("w") as lines:
        for path in paths:
            url = {"type": "image_url", "image_url": {"url": f"{path.parent.name}/{path.name}"}}
            content = [url, {"type": "text", "text": QUESTION}]
            body = {"model": model, "messages": [{"role": "user", "content": content}]}
            body["max_tokens"] = max_tokens
            entry = {"custom_id": path.stem, "method": "POST", "url": "/v1/chat/completions"}
            print(json.dumps(entry | {"body": body}), file=lines)


@asynccontextmanager
async def batch_server(model: str, engine: str) -> AsyncIterator[tuple[OfflineServer, str]]:
    """Yield what ``vlmkit batch`` sends its requests to, and the served name of the model."""
    found = prepared([model], None, [f"engine.use={engine}"], {}, listens=False)
    async with offline_server(
        found.specs, found.settings, fetch=found.config.fetch, apis=found.apis
    ) as server:
        yield server, next(iter(found.specs))


async def batch(server: OfflineServer, source: Path) -> int:
    """Answer a file of requests as ``vlmkit batch``, and return the tokens of the answers."""
    target = source.with_suffix(".out")
    with closing(OutputFile(target)) as output:
        run = BatchFile(server.client, output, source.parent, 2**26, server.num_concurrent)
        await run.run(source)
    lines = map(json.loads, target.read_text().splitlines())
    return sum(line["response"]["body"]["usage"]["completion_tokens"] for line in lines)


async def rounds(
    model_name: str, engine: str, num: int, num_rounds: int, max_tokens: int
) -> list[dict[str, float]]:
    """Return the answers per second of each way, for each round."""
    measured = []
    loaded = vlmkit.load(model_name, engine={"use": engine})
    with tempfile.TemporaryDirectory() as name, loaded as model:
        async with batch_server(model_name, engine) as (server, served):
            for number in range(num_rounds + 1):  # the first one warms up
                folder, per_s = Path(name), {}

                async def by_batch(paths: list[Path]) -> int:
                    file = folder / f"{paths[0].parent.name}.jsonl"  # noqa: B023
                    await asyncio.to_thread(write_lines, file, served, paths, max_tokens)
                    return await batch(server, file)

                ways: dict[str, Callable] = {
                    "submitted at once": lambda paths: asyncio.to_thread(
                        at_once, model, paths, max_tokens
                    ),
                    "generate_many": lambda paths: asyncio.to_thread(
                        many, model, paths, max_tokens
                    ),
                    "agenerate_many": lambda paths: amany(model, paths, max_tokens),
                    "vlmkit batch": by_batch,
                }
                order = list(ways)[:: 1 if number % 2 else -1]
                for place, way in enumerate(order):
                    paths = pictures(folder / f"{number}-{place}", num, 100 * number + place)
                    started = time.perf_counter()
                    num_tokens = await ways[way](paths)
                    per_s[way] = num_tokens / (time.perf_counter() - started)
                measured += [per_s] * bool(number)
    return measured


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--engine", default="onnx")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=24)
    args = parser.parse_args()
    measured = asyncio.run(
        rounds(args.model, args.engine, args.requests, args.rounds, args.max_tokens)
    )
    rows = []
    for way in measured[0]:
        ratios = [each[way] / each["submitted at once"] for each in measured]
        tokens_per_s = statistics.median(each[way] for each in measured)
        rows.append((way, f"{tokens_per_s:,.0f}", f"{statistics.median(ratios):.3f}"))
    print(tables.markdown(("way", "tokens/s", "ratio"), rows))
    print(f"required: {REQUIRED}")


if __name__ == "__main__":
    main()
