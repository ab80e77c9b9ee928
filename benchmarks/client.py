"""A load generator for any OpenAI-compatible server; runs in a process of its own.

    python benchmarks/client.py URL MODEL --clients 8 --tokens 64 --prompt-words 100

Every client streams one answer; prints one JSON object: tokens per second over all clients, time
to the first token and events per second. Speaks raw HTTP/1.1, so that the client costs little.
"""

import argparse
import asyncio
import base64
import json
import statistics
import time
from pathlib import Path
from urllib.parse import urlsplit


async def ask(url: str, body: bytes) -> list[float]:
    """Stream one answer; return when each piece of its text came, after the question."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**20)
    head = (
        f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        "Authorization: Bearer none\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    status = await reader.readline()
    assert b" 200 " in status, status + await reader.read(2000)
    times: list[float] = []
    rest = b""
    while piece := await reader.read(2**16):
        rest += piece
        *lines, rest = rest.split(b"\n")
        times += [time.perf_counter()] * sum(map(_has_text, lines))
    writer.close()
    return times


def _has_text(line: bytes) -> bool:
    if not line.startswith(b"data: {"):
        return False
    line = line.replace(b'"content": ', b'"content":')
    return b'"content":"' in line and b'"content":""' not in line


async def load(url: str, bodies: list[bytes]) -> dict[str, float]:
    """Ask everything at once and return what was seen."""
    started = time.perf_counter()
    seen = await asyncio.gather(*(ask(url, body) for body in bodies))
    wall_s = time.perf_counter() - started
    num_events = sum(map(len, seen))
    first, last = max(times[0] for times in seen), min(times[-1] for times in seen)
    together = sum(first < t <= last for times in seen for t in times)
    return {
        "tokens_per_s": num_events / wall_s,
        "together_tokens_per_s": together / (last - first) if last > first else 0.0,
        "first_token_s": statistics.median(times[0] for times in seen) - started,
        "wall_s": wall_s,
        "num_events": num_events,
    }


def question(options: argparse.Namespace, number: int) -> bytes:
    """Return the body of one client's request."""
    prompt = options.prompt or "# " + "word " * options.prompt_words
    content: object = prompt.replace("#", str(number))
    if options.image:
        data = base64.b64encode(Path(options.image).read_bytes()).decode()
        picture = {"url": f"data:image/jpeg;base64,{data}"}
        text = {"type": "text", "text": content}
        content = [{"type": "image_url", "image_url": picture}, text]
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": options.tokens,
        "temperature": 0,
        "stream": True,
    }
    return json.dumps(body).encode()


def main() -> None:
    """Run the load and print the result as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt-words", type=int, default=30)
    parser.add_argument("--prompt", default="", help="'#' becomes the number of the client")
    parser.add_argument("--image", default="", help="a JPEG file before the prompt")
    options = parser.parse_args()
    bodies = [question(options, number) for number in range(options.clients)]
    print(json.dumps(asyncio.run(load(options.url, bodies))))


if __name__ == "__main__":
    main()
