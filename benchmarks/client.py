"""A load generator for any OpenAI-compatible server; runs in a process of its own.

    python benchmarks/client.py URL MODEL --clients 8 --tokens 64 --prompt-words 100

Every client streams one answer; prints one JSON object: tokens per second over all clients, time
to the first token and events per second. Speaks raw HTTP/1.1, so that the client costs little.
"""

import argparse
import asyncio
import json
import statistics
import time
from urllib.parse import urlsplit


async def ask(url: str, body: bytes) -> tuple[float, float, int]:
    """Stream one answer; return the time to its first text, its whole time and its events."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**20)
    head = (
        f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        "Authorization: Bearer none\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    started = time.perf_counter()
    writer.write(head.encode() + body)
    status = await reader.readline()
    assert b" 200 " in status, status + await reader.read(2000)
    first, num_events, rest = 0.0, 0, b""
    while piece := await reader.read(2**16):
        rest += piece
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if (
                line.startswith(b"data: {")
                and b'"content":"' in line
                and b'"content":""' not in line
            ):
                first = first or time.perf_counter() - started
                num_events += 1
    writer.close()
    return first, time.perf_counter() - started, num_events


async def load(url: str, model: str, clients: int, tokens: int, prompt: str) -> dict[str, float]:
    """Run all clients at once and return what they saw."""
    bodies = [
        json.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": prompt.replace("#", str(number))}],
                "max_tokens": tokens,
                "temperature": 0,
                "stream": True,
            }
        ).encode()
        for number in range(clients)
    ]
    started = time.perf_counter()
    seen = await asyncio.gather(*(ask(url, body) for body in bodies))
    wall_s = time.perf_counter() - started
    num_events = sum(events for _, _, events in seen)
    return {
        "tokens_per_s": num_events / wall_s,
        "first_token_s": statistics.median(first for first, _, _ in seen),
        "wall_s": wall_s,
        "num_events": num_events,
    }


def main() -> None:
    """Run the load and print the result as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt-words", type=int, default=30)
    parser.add_argument("--prompt", default="")
    options = parser.parse_args()
    prompt = options.prompt or "# " + "word " * options.prompt_words
    print(
        json.dumps(
            asyncio.run(load(options.url, options.model, options.clients, options.tokens, prompt))
        )
    )


if __name__ == "__main__":
    main()
