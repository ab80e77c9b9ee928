"""The clients of `soak.py`: honest ones, senders of invalid requests, and idle connections.

    python benchmarks/soak_clients.py honest|bad|idle PORT --seconds 60 --clients 64

Every honest request has a known answer: the mock repeats its input, and the packaged model repeats
its answers without other load. So an answer of another request, or with a missing or extra token,
is detected. The program prints one JSON object of counts. It uses raw HTTP/1.1, so that the client
costs little.
"""

import argparse
import asyncio
import base64
import collections
import hashlib
import io
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEAD = "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
PAUSE_S = 0.6  # the mean pause of a client between two requests
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@dataclass
class Outcomes:
    """The outcomes of requests."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    first_token_s: list[tuple[float, float]] = field(default_factory=list)

    def dump(self) -> str:
        """Return the outcomes as JSON."""
        shown = {"wrong": self.wrong[:20], "first_token_s": self.first_token_s}
        return json.dumps({"counts": self.counts, **shown})


@dataclass(frozen=True)
class Question:
    """A request and its expected answer.

    Attributes:
        kind: the name in the counts.
        path: the path of the API.
        body: the request body.
        check: returns whether the JSON of an answer, or the list of stream events, is correct.
    """

    kind: str
    path: str
    body: dict[str, Any]
    check: Callable[[Any], bool]


class RequestMaker:
    """Makes requests with known answers."""

    def __init__(self, seed: int, known: dict[str, str], pictures: list[str]) -> None:
        self._random = random.Random(seed)
        self._known = known
        self._pictures = pictures

    def question(self) -> Question:
        """Return a question of any kind."""
        kinds = [self._text, self._streamed, self._image, self._constrained, self._scored]
        kinds += [self._several, self._message, self._completion, self._response]
        if self._known:
            kinds += [self._demo] * 2
        return self._random.choice(kinds)()

    def _words(self) -> str:
        return " ".join(f"{self._random.getrandbits(64):016x}" for _ in range(4))

    def _chat(self, content: Any, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return {"model": "mock", "messages": messages, "temperature": 0} | fields

    def _text(self) -> Question:
        said = self._words()
        return _chat_question("text", self._chat(said), lambda a: _content(a) == said)

    def _streamed(self) -> Question:
        said = self._words() * self._random.randrange(1, 5)
        body = self._chat(said, stream=True, logprobs=True, top_logprobs=3)
        return _chat_question("streamed", body, lambda a: _joined(a) == said and _scores(a) == said)

    def _image(self) -> Question:
        from PIL import Image

        said, size = self._words(), (self._random.randrange(8, 200), self._random.randrange(8, 200))
        image = Image.new("RGB", size, tuple(self._random.randbytes(3)))
        packed = io.BytesIO()
        image.save(packed, self._random.choice(["PNG", "WEBP"]), lossless=True)
        url = "data:image/png;base64," + base64.b64encode(packed.getvalue()).decode()
        head = f"RGB {size[0]}x{size[1]}".encode() + b"\0"
        digest = hashlib.sha256(head + image.tobytes()).hexdigest()[:16]
        answer = f"image 1: {size[0]}x{size[1]} sha256:{digest}\n{said}"
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": said}]
        return _chat_question("picture", self._chat(parts), lambda a: _content(a) == answer)

    def _constrained(self) -> Question:
        answer = json.dumps({"n": self._random.getrandbits(40)})
        script = json.dumps({"mock": {"text": answer}})
        schema = {"name": "n", "schema": SCHEMA, "strict": True}
        form = {"type": "json_schema", "json_schema": schema}
        body = self._chat(script, response_format=form)
        return _chat_question("constrained", body, lambda a: _content(a) == answer)

    def _scored(self) -> Question:
        said = self._words()
        body = self._chat(said, logprobs=True, top_logprobs=20)
        return _chat_question("scored", body, lambda a: _scores([a]) == said == _content(a))

    def _several(self) -> Question:
        said = self._words()
        return _chat_question(
            "several",
            self._chat(said, n=4),
            lambda a: [c["message"]["content"] for c in a["choices"]] == [said] * 4,
        )

    def _message(self) -> Question:
        said = self._words()
        body = self._chat(said, max_tokens=200)
        return Question("message", "/v1/messages", body, lambda a: a["content"][0]["text"] == said)

    def _completion(self) -> Question:
        said = self._words()
        body = {"model": "mock", "prompt": said, "max_tokens": 200}
        return Question(
            "completion", "/v1/completions", body, lambda a: a["choices"][0]["text"] == said
        )

    def _response(self) -> Question:
        said = self._words()
        body = {"model": "mock", "input": said}
        return Question(
            "response",
            "/v1/responses",
            body,
            lambda a: a["output"][0]["content"][0]["text"] == said,
        )

    def _demo(self) -> Question:
        asked = self._random.choice(list(self._known))
        body, answer = demo_body(asked, self._pictures), self._known[asked]
        return _chat_question("demo", body, lambda a: _content(a) == answer)


def demo_body(asked: str, pictures: list[str]) -> dict[str, Any]:
    """Return the body of a question to the packaged model: "PICTURE question"."""
    number, _, text = asked.partition(" ")
    url = f"data:image/png;base64,{pictures[int(number)]}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    messages = [{"role": "user", "content": parts}]
    return {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 32}


def sample_images() -> list[str]:
    """Return the sample images of the packaged model, in base64."""
    from vlmkit_demo.plugin import pictures

    names = sorted(Path(str(pictures())).iterdir())
    return [base64.b64encode(p.read_bytes()).decode() for p in names if p.suffix != ".md"]


def _chat_question(kind: str, body: dict[str, Any], check: Callable[[Any], bool]) -> Question:
    return Question(kind, "/v1/chat/completions", body, check)


def _content(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def _joined(events: list[Any]) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def _scores(events: list[Any]) -> str:
    entries = [
        entry
        for event in events
        for choice in event["choices"]
        for entry in (choice.get("logprobs") or {}).get("content") or ()
    ]
    return bytes(byte for entry in entries for byte in entry["bytes"] or ()).decode()


async def sent(port: int, path: str, content: bytes) -> tuple[int, bytes, float]:
    """Send a body; return status, answer and the seconds to its first byte."""
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        writer.write(_head(path, content) + content)
        status = int((await reader.readline()).split()[1])
        first_s = time.perf_counter() - started
        _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return status, body, first_s
    finally:
        writer.close()


def _head(path: str, content: bytes) -> bytes:
    head = HEAD.format(path=path) + f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
    return head.encode()


def parsed(body: bytes, *, is_stream: bool) -> Any:
    """Return the JSON of an answer, or the events of a stream."""
    text = _without_chunks(body) if body[:1] not in b"{" else body
    if not is_stream:
        return json.loads(text)
    events = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: {")]
    assert b"data: [DONE]" in text, "the stream did not end"
    return [json.loads(event) for event in events]


def _without_chunks(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return whole


async def ask_until_end(
    port: int, maker: RequestMaker, seen: Outcomes, until: float, chance: random.Random
) -> None:
    """Send requests until the time is over; abandon one in six during its answer."""
    while time.time() < until:
        question = maker.question()
        content = json.dumps(question.body).encode()
        try:
            if chance.random() < 1 / 6:
                await leave(port, question.path, content, chance)
                seen.counts["left"] += 1
            else:
                await ask(port, question, content, seen)
        except (OSError, ValueError, IndexError, AssertionError) as error:
            seen.counts["broken"] += 1
            seen.wrong.append(f"{question.kind}: {type(error).__name__} {error}"[:300])
        await asyncio.sleep(chance.expovariate(1 / PAUSE_S))


async def ask(port: int, question: Question, content: bytes, seen: Outcomes) -> None:
    """Send a request, wait for the whole answer and check it."""
    status, body, first_s = await sent(port, question.path, content)
    seen.first_token_s.append((round(time.time(), 2), round(first_s, 4)))
    if status in (429, 503):
        seen.counts[str(status)] += 1
    elif status != 200:
        seen.counts["refused"] += 1
        seen.wrong.append(f"{question.kind}: {status} {body[:200]!r}")
    elif question.check(parsed(body, is_stream=bool(question.body.get("stream")))):
        seen.counts[question.kind] += 1
    else:
        seen.counts["mixed up"] += 1
        seen.wrong.append(f"{question.kind}: {content[-200:]!r} -> {body[-300:]!r}")


async def leave(port: int, path: str, content: bytes, chance: random.Random) -> None:
    """Send a body, or a part of it, and disconnect at a random time."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    whole = _head(path, content) + content
    writer.write(whole if chance.random() < 0.7 else whole[: chance.randrange(len(whole))])
    await asyncio.sleep(chance.random() * 0.05)
    writer.transport.abort()


async def honest(options: argparse.Namespace, seen: Outcomes) -> None:
    """Send honest requests with many clients at once."""
    until = time.time() + options.seconds
    known = json.loads(options.known.read_text()) if options.known else {}
    pictures = sample_images() if known else []
    async with asyncio.TaskGroup() as group:
        for number in range(options.clients):
            seed = hash((options.seed, number))
            maker = RequestMaker(seed, known, pictures)
            group.create_task(ask_until_end(options.port, maker, seen, until, random.Random(seed)))


async def bad(options: argparse.Namespace, seen: Outcomes) -> None:
    """Send almost valid bodies, evenly over the time."""
    chance = random.Random(options.seed)
    maker = RequestMaker(options.seed, {}, [])
    started = time.time()
    gap_s = options.seconds / options.requests
    at_once = asyncio.Semaphore(32)

    async def one() -> None:
        async with at_once:
            question = maker.question()
            content = spoiled(json.dumps(question.body).encode(), chance)
            try:
                status, _, _ = await asyncio.wait_for(
                    sent(options.port, question.path, content), 60
                )
                seen.counts[str(status)] += 1
                if status >= 500 and status != 503:
                    seen.wrong.append(f"{status}: {content[:300]!r}")
            except (OSError, IndexError, TimeoutError) as error:
                seen.counts[type(error).__name__] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(options.requests):
            await asyncio.sleep(max(started + number * gap_s - time.time(), 0))
            async with at_once:
                group.create_task(one())


def spoiled(content: bytes, chance: random.Random) -> bytes:
    """Return a body with an error; about half of them are still JSON."""
    ways: list[Callable[[bytes], bytes]] = [
        lambda c: c[: chance.randrange(len(c))],
        lambda c: c.replace(b'"user"', chance.choice([b'"wizard"', b"7", b"null", b"[]"])),
        lambda c: c.replace(b'"model"', chance.choice([b'"modle"', b'"model": "x", "model"'])),
        lambda c: c[:-1] + b', "max_tokens": %d}' % chance.choice([-1, 0, 2**63, 10**30]),
        lambda c: c[:-1] + b', "n": %d, "top_logprobs": 10000}' % chance.randrange(-5, 10**6),
        lambda c: (
            c[:-1]
            + b', "temperature": '
            + chance.choice([b"NaN", b"1e999", b'"hot"', b"-1"])
            + b"}"
        ),
        lambda c: b"[" * 5000 + c,
        lambda c: c.replace(b"content", b"content\\ud800", 1),
        lambda c: bytes(b ^ 1 << chance.randrange(8) if chance.random() < 0.01 else b for b in c),
        lambda c: c.replace(b"base64,", b"base64,AAAA"),
        lambda c: c.replace(
            b"data:image", chance.choice([b"file:///etc/passwd", b"http://[::1]/x"])
        ),
        lambda _: chance.randbytes(chance.randrange(1, 2000)),
        lambda _: b"",
    ]
    return chance.choice(ways)(content)


async def idle(options: argparse.Namespace, seen: Outcomes) -> None:
    """Hold silent connections; count those that the server closes early."""
    held = []
    for number in range(options.clients):
        try:
            address = (f"127.0.{1 + number // 200}.{1 + number % 200}", 0)
            held.append(
                await asyncio.open_connection("127.0.0.1", options.port, local_addr=address)
            )
            seen.counts["opened"] += 1
        except OSError as error:
            seen.counts[type(error).__name__] += 1
    await asyncio.sleep(options.seconds)
    seen.counts["ended by the server"] = sum(r.at_eof() for r, _ in held)
    for _, writer in held:
        writer.transport.abort()


def main() -> None:
    """Run one group of clients and print the outcomes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["honest", "bad", "idle"])
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--known", type=Path, help="answers of the packaged model, as JSON")
    options = parser.parse_args()
    seen = Outcomes()
    part = {"honest": honest, "bad": bad, "idle": idle}[options.part]
    asyncio.run(part(options, seen))
    print(seen.dump())


if __name__ == "__main__":
    main()
