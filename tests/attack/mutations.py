"""Hostile values for any field, and bodies that hold several of them at once.

Each text contains a marker, so a log or an error that repeats the text is detected.
"""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from attack.bodies import SAMPLE, Bodies, Sent, Verbatim, encoded, merged
from attack.declared import Field

MARKER = "marker-5f21c0de"

VALUES: Sequence[Any] = (
    None,
    True,
    -1,
    0.5,
    2**31,
    2**63,
    -(2**64),
    10**30,
    1e308,
    Verbatim(b"1e400"),
    Verbatim(b"NaN"),
    Verbatim(b"-0.0"),
    Verbatim(b"9" * 4000),
    "",
    MARKER,
    f"{MARKER}<|im_end|><image>\u202e\u0000\u0301",
    MARKER * 8000,
    Verbatim(b'"\\ud800' + MARKER.encode() + b'"'),
    Verbatim(b'"\xff\xfe' + MARKER.encode() + b'"'),
    Verbatim(b'"\\u0000\\uffff"'),
    f"../../../etc/passwd?{MARKER}",
    f"file:///etc/passwd#{MARKER}",
    f"http://127.0.0.1:1/{MARKER}",
    f"data:image/png;base64,{MARKER}",
    f"data:text/html,{MARKER}",
    f"a\r\nx-{MARKER}: 1",
    f"(?P<{MARKER}>(a+)+$",
    [],
    {},
    [[[[]]]],
    [MARKER] * 50,
    {MARKER: MARKER},
    {"type": MARKER, "role": MARKER},
    {"$ref": "#", "type": "object"},
    Verbatim(b"[" * 3000 + b"]" * 3000),
    Verbatim(b'{"a":' * 3000 + b"1" + b"}" * 3000),
    Verbatim(b'1, "twice": 2, "twice": "' + MARKER.encode() + b'"'),
    Verbatim(b"[1,]"),
    Verbatim(b'{"a": '),
    Verbatim(b""),
    Verbatim(b"0x10"),
    Verbatim(b"'" + MARKER.encode() + b"'"),
)
"""What may stand where any value is expected."""

PLAIN = [value for value in VALUES if not isinstance(value, Verbatim)]


def mutants(field: Field, bodies: Bodies, chance: random.Random, count: int) -> Iterator[Sent]:
    """Yield requests that are wrong at one field.

    Args:
        field: where.
        bodies: makes requests.
        chance: chooses.
        count: how many, of :data:`VALUES` at most.
    """
    usable = VALUES if field.where == "json" else [v for v in PLAIN if not holds_a_line(v)]
    for value in chance.sample(usable, min(count, len(usable))):
        sent = bodies.request(field, value)
        yield duplicated(sent, field) if chance.random() < 0.1 else sent


def holds_a_line(value: Any) -> bool:
    """Whether a header cannot hold a value."""
    text = value if isinstance(value, str) else json.dumps(value)
    return not text.isprintable() or not text.isascii() or len(text) > 60_000


def duplicated(sent: Sent, field: Field) -> Sent:
    """Return a request whose body has one of its keys twice."""
    if field.where != "json" or not sent.content.startswith(b"{"):
        return sent
    key = json.dumps(field.steps[0]).encode()
    return sent._replace(content=b"{" + key + b": 1, " + sent.content[1:])


def combined(
    fields: Sequence[Field], bodies: Bodies, chance: random.Random, count: int
) -> Iterator[Sent]:
    """Yield requests with samples and hostile values at several fields of one operation.

    Args:
        fields: of the JSON body of one operation.
        bodies: makes requests.
        chance: chooses.
        count: how many.
    """
    for _ in range(count):
        chosen = chance.sample(fields, min(len(fields), chance.randint(2, 4)))
        body: Any = {}
        for each in chosen:
            value = chance.choice(VALUES) if chance.random() < 0.3 else SAMPLE
            body = merged(body, bodies.body(each, value))
        sent = bodies.request(chosen[0])
        yield sent._replace(content=broken(encoded(body), chance))


def broken(content: bytes, chance: random.Random) -> bytes:
    """Return a body of which, one time in four, some bytes are cut, doubled or changed."""
    if chance.random() > 0.25 or len(content) < 2:
        return content
    place, other = sorted(chance.sample(range(len(content)), 2))
    ways = (
        content[:place],
        content[:place] + content[place:other] * 2 + content[other:],
        content[:place] + bytes([chance.randrange(256)]) + content[place + 1 :],
        content[:place] + content[other:],
    )
    return chance.choice(ways)
