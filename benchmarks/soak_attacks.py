"""The hostile clients of `soak.py`: costly constraints, bombs, pipelines, boundaries, log markers.

    python benchmarks/soak_attacks.py PORT --seconds 60 --clients 4

They abandon every second request before its answer. Values come from the generators of
`tests/attack`. The program prints one JSON object of counts. A 5xx status other than 503, or no
answer, is wrong.
"""

import argparse
import asyncio
import collections
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import soak_clients

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from attack import files, grammars
from attack.bodies import Verbatim, encoded, multipart
from attack.mutations import MARKER, VALUES

PAUSE_S = 0.25  # the mean pause of a client between two attacks
PATIENCE_S = 120.0
PIXELS = 49_000_000
PIPELINED = 64
KINDS = ("PNG", "JPEG", "progressive JPEG", "lossy WebP", "lossless WebP", "GIF")
USER = {"role": "user", "content": "Hello"}
CHAT = "/v1/chat/completions"


class Attack(NamedTuple):
    """One request, or several in a row on one connection.

    Attributes:
        kind: the name in the counts.
        content: the bytes that are sent, headers included.
        may_end: whether the server may close the connection without an answer.
    """

    kind: str
    content: bytes
    may_end: bool = False


def posted(body: Any, path: str = CHAT) -> bytes:
    """Return a request after which the server closes the connection."""
    content = encoded(body)
    head = soak_clients.HEAD.format(path=path)
    return f"{head}content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode() + content


def asked(content: Any = "Hello", **fields: Any) -> dict[str, Any]:
    """Return a body of the chat API."""
    messages = [{"role": "user", "content": content}]
    return {"model": "mock", "messages": messages, "max_tokens": 16} | fields


class Attacker:
    """Makes attacks.

    Args:
        chance: the source of randomness.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def attack(self) -> Attack:
        """Return an attack of any kind."""
        ways: list[Callable[[], Attack]] = [
            *(self._regex, self._schema, self._lark, self._choice, self._tools, self._image),
            *(self._pdf, self._pipeline, self._boundary, self._markers, self._values),
        ]
        return self._chance.choice(ways)()

    def _grown(self, table: grammars.Grown) -> Any:
        make = self._chance.choice([*table.values()])
        return make(2 ** self._chance.randrange(4, 15))

    def _regex(self) -> Attack:
        dear = [f"a{{{10**9}}}", "(a{1000}){1000}", "(a|b)*a(a|b){1000}"]
        is_known = self._chance.random() < 0.5
        regex = self._chance.choice(dear) if is_known else self._grown(grammars.REGEXES)
        return Attack("regex", posted(asked(guided_regex=regex)))

    def _schema(self) -> Attack:
        dear = [{"type": "integer", "multipleOf": number} for number in (99_999_989, 999_983)]
        is_known = self._chance.random() < 0.5
        schema = self._chance.choice(dear) if is_known else self._grown(grammars.SCHEMAS)
        return Attack("schema", posted(asked(guided_json=schema)))

    def _lark(self) -> Attack:
        return Attack("grammar", posted(asked(guided_grammar=self._grown(grammars.LARKS))))

    def _choice(self) -> Attack:
        return Attack("choice", posted(asked(guided_choice=self._grown(grammars.CHOICES))))

    def _tools(self) -> Attack:
        schema = self._grown(grammars.SCHEMAS)
        function = {"name": "look", "parameters": {"type": "object", "properties": {"a": schema}}}
        tools = [{"type": "function", "function": function}]
        return Attack("tools", posted(asked(tools=tools, tool_choice="required")))

    def _image(self) -> Attack:
        content = files.image(self._chance.choice(KINDS), PIXELS)
        part = {"type": "image_url", "image_url": {"url": files.data_url(content)}}
        return Attack("image", posted(asked([part])))

    def _pdf(self) -> Attack:
        make, size = self._chance.choice(
            [
                (files.pdf_forms, self._chance.randrange(16, 40)),
                (files.pdf_operators, 2 ** self._chance.randrange(10, 17)),
                (files.pdf_pages, 2 ** self._chance.randrange(4, 16)),
                (files.pdf_side, 10 ** self._chance.randrange(3, 9)),
            ]
        )
        data = files.in_base64(make(size))
        part = {"type": "file", "file": {"file_data": data, "filename": f"{MARKER}.pdf"}}
        return Attack("PDF", posted(asked([part])))

    def _pipeline(self) -> Attack:
        one = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
        return Attack("pipeline", one * PIPELINED)

    def _boundary(self) -> Attack:
        boundary = "b" * 2 ** self._chance.randrange(4, 14)
        kind, content = multipart({"file": b"a", "purpose": "user_data"}, boundary)
        head = f"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
        head += f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        return Attack("boundary", head.encode() + content, may_end=True)

    def _markers(self) -> Attack:
        bad = f"(?P<{MARKER}>(a"
        fields: dict[str, Any] = self._chance.choice(
            [
                {"guided_regex": bad},
                {"guided_grammar": f"start: {bad}"},
                {"guided_json": {"type": MARKER, "pattern": bad}},
                {"guided_json": {"$ref": f"#/{MARKER}"}},
                {"model": MARKER},
                {"user": MARKER, "stop": MARKER, "temperature": MARKER},
            ]
        )
        return Attack("log marker", posted(asked(MARKER) | fields))

    def _values(self) -> Attack:
        name = self._chance.choice(
            [
                "messages",
                "max_tokens",
                "n",
                "seed",
                "stop",
                "tools",
                "logit_bias",
                "stream_options",
                "top_logprobs",
            ]
        )
        value = self._chance.choice(VALUES)
        kept = value if isinstance(value, Verbatim) or self._chance.random() < 0.5 else [value]
        return Attack("value", posted(asked() | {name: kept}))


async def attack_on(
    port: int, attacker: Attacker, seen: soak_clients.Outcomes, until: float, chance: random.Random
) -> None:
    """Attack until the time is over; abandon every second attack at a random time."""
    while time.time() < until:
        attack = await asyncio.to_thread(attacker.attack)
        seen.counts[attack.kind] += 1
        try:
            if chance.random() < 0.5:
                await leave(port, attack, chance)
                seen.counts["left"] += 1
            else:
                await asyncio.wait_for(judge(port, attack, seen), PATIENCE_S)
        except TimeoutError:
            seen.wrong.append(f"{attack.kind}: no answer in {PATIENCE_S:.0f} s")
        except OSError:
            seen.counts["connections cut"] += 1
        await asyncio.sleep(chance.expovariate(1 / PAUSE_S))


async def judge(port: int, attack: Attack, seen: soak_clients.Outcomes) -> None:
    """Send an attack, read the whole response, and count its statuses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        writer.write(attack.content)
        received = await reader.read()
    finally:
        writer.transport.abort()
    statuses = [
        int(line.split()[1]) for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")
    ]
    seen.counts.update(map(str, statuses))
    if not statuses and not attack.may_end:
        seen.wrong.append(f"{attack.kind}: no answer to {attack.content[:300]!r}")
    seen.wrong += [
        f"{attack.kind}: {status} to {attack.content[-300:]!r}"
        for status in statuses
        if status >= 500 and status != 503
    ]


async def leave(port: int, attack: Attack, chance: random.Random) -> None:
    """Send an attack and close the connection during its processing."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(attack.content)
    await asyncio.sleep(chance.random() * 2)
    writer.transport.abort()


async def attack_all(options: argparse.Namespace, seen: soak_clients.Outcomes) -> None:
    """Attack with many clients at once."""
    until = time.time() + options.seconds
    async with asyncio.TaskGroup() as group:
        for number in range(options.clients):
            chance = random.Random(f"{options.seed} {number}")
            attacker = Attacker(chance)
            group.create_task(attack_on(options.port, attacker, seen, until, chance))


def main() -> None:
    """Run the attacks, and print the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seen = soak_clients.Outcomes(collections.Counter())
    asyncio.run(attack_all(options, seen))
    print(json.dumps({"counts": seen.counts, "wrong": seen.wrong[:20]}))


if __name__ == "__main__":
    main()
