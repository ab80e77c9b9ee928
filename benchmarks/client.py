"""A load generator for any OpenAI-compatible server, in its own process.

    python benchmarks/client.py URL MODEL --clients 8 --tokens 64 --prompt-words 100
    python benchmarks/client.py URL MODEL --plan FILE

Every client streams one answer. The program prints one JSON object: tokens per second over all
clients and time to first token. With a plan of arrival times, it prints the waits of each reader:
for the first token, and between tokens. It uses raw HTTP/1.1, so that the client costs little.
"""

import argparse
import asyncio
import base64
import json
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Question:
    """One request.

    Attributes:
        prompt: the user text.
        tokens: the tokens of the answer.
        at_s: the arrival time after the start.
    """

    prompt: str
    tokens: int
    at_s: float = 0.0


async def ask(url: str, body: bytes) -> list[float]:
    """Stream one answer; return the arrival time of each piece of text."""
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


async def ask_all(
    options: argparse.Namespace, questions: list[Question]
) -> tuple[float, list[list[float]]]:
    """Send each request at its time; return the start time and the text times of each answer."""
    bodies = [body(options, question) for question in questions]
    started = time.perf_counter()

    async def one(question: Question, body: bytes) -> list[float]:
        await asyncio.sleep(started + question.at_s - time.perf_counter())
        times = await ask(options.url, body)
        return times[-question.tokens :]  # transformers may return the prompt before the answer

    return started, await asyncio.gather(*map(one, questions, bodies))


def together(started: float, seen: list[list[float]]) -> dict[str, float]:
    """Return the figures of simultaneous answers."""
    wall_s = max(times[-1] for times in seen) - started
    num_events = sum(map(len, seen))
    first, last = max(times[0] for times in seen), min(times[-1] for times in seen)
    grown = sum(first < t <= last for times in seen for t in times)
    return {
        "tokens_per_s": num_events / wall_s,
        "together_tokens_per_s": grown / (last - first) if last > first else 0.0,
        "first_token_s": statistics.median(times[0] for times in seen) - started,
        "wall_s": wall_s,
        "num_events": num_events,
    }


def waits(
    started: float, questions: list[Question], seen: list[list[float]]
) -> dict[str, list[list[float]]]:
    """Return the waits of each reader: for the first token, then between tokens."""
    asked = [started + question.at_s for question in questions]
    edges = [[at, *times] for at, times in zip(asked, seen, strict=True)]
    return {"waits_s": [[later - sooner for sooner, later in pairwise(e)] for e in edges]}


def body(options: argparse.Namespace, question: Question) -> bytes:
    """Return the body of a request."""
    content: object = question.prompt
    if options.image:
        data = base64.b64encode(Path(options.image).read_bytes()).decode()
        image = {"url": f"data:image/jpeg;base64,{data}"}
        text = {"type": "text", "text": content}
        content = [{"type": "image_url", "image_url": image}, text]
    fields = {
        "model": options.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": question.tokens,
        "stream": True,
        **json.loads(options.sampling),
    }
    return json.dumps(fields).encode()


def same_questions(options: argparse.Namespace) -> list[Question]:
    """Return one request for each client, all at once."""
    prompt = options.prompt or "# " + "word " * options.prompt_words
    return [
        Question(prompt.replace("#", str(number)), options.tokens)
        for number in range(options.clients)
    ]


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
    parser.add_argument("--sampling", default='{"temperature": 0}', help="fields of each request")
    parser.add_argument("--plan", type=Path, help="a JSON list of prompt, tokens and at_s")
    options = parser.parse_args()
    if options.plan:
        questions = [Question(**fields) for fields in json.loads(options.plan.read_text())]
    else:
        questions = same_questions(options)
    started, seen = asyncio.run(ask_all(options, questions))
    if options.plan:
        print(json.dumps(waits(started, questions, seen)))
    else:
        print(json.dumps(together(started, seen)))


if __name__ == "__main__":
    main()
