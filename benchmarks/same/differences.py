"""Finds differences between two recordings, apart from deliberate renames."""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from same.request import Json

LONGEST = 300
ABSENT = object()
"""A value that is missing."""


class Difference(NamedTuple):
    """One difference.

    Attributes:
        request: the name of the request.
        place: the path in the exchange, such as ``body.choices.0.text``.
        old: the value in the first recording, or ABSENT.
        new: the value in the second recording, or ABSENT.
    """

    request: str
    place: str
    old: Json
    new: Json

    def __str__(self) -> str:
        return f"{self.request}\n  {self.place}\n  - {_short(self.old)}\n  + {_short(self.new)}"


@dataclass
class Renames:
    """Deliberate renames.

    Attributes:
        headers: new header names by old names, in lower case.
        texts: new texts of answers by old texts.
        asked: new texts of requests and server settings by old texts.
        used: the old names that were found.
    """

    headers: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path | None) -> "Renames":
        """Return the renames of a file, or none."""
        told = {} if path is None else tomllib.loads(path.read_text(encoding="utf-8"))
        if unknown := told.keys() - {"headers", "texts", "asked"}:
            raise SystemExit(f"{path} has tables that are not known: {sorted(unknown)}")
        return cls(**told)

    def answer(self, answer: Json) -> Json:
        """Return an answer after renaming."""
        renamed = dict(answer)
        renamed["headers"] = [[self._header(k), self.text(v)] for k, v in answer["headers"]]
        if "body" in answer:
            renamed["body"] = self.text(answer["body"])
        if "events" in answer:
            renamed["events"] = [*map(self.text, answer["events"])]
        return renamed

    def request(self, request: Json) -> Json:
        """Return a request after renaming; its own name stays."""
        renamed = json.loads(self.settings(json.dumps(request))) | {"name": request["name"]}
        if "headers" in request:
            headers = renamed["headers"].items()
            renamed["headers"] = {self._header(name): value for name, value in headers}
        return renamed

    def settings(self, text: str) -> str:
        """Return settings of a server, or a request, after renaming."""
        return self._replaced(text, self.asked)

    def text(self, text: str) -> str:
        """Return a text of an answer after renaming."""
        return self._replaced(text, self.texts)

    def _replaced(self, text: str, words: dict[str, str]) -> str:
        for old, new in words.items():
            if old in text:
                self.used.add(old)
                text = text.replace(old, new)
        return text

    def unused(self) -> list[str]:
        """Return the old names that no answer has."""
        names = (*self.headers, *self.texts, *self.asked)
        return [name for name in names if name not in self.used]

    def _header(self, name: str) -> str:
        if name not in self.headers:
            return name
        self.used.add(name)
        return self.headers[name]


def printed(old: Path, new: Path, renamed: Path | None) -> int:
    """Print each difference of two recordings; return 1 if there is one, else 0."""
    renames = Renames.read(renamed)
    before, after = read(old), read(new)
    found = [*differences(before, after, renames)]
    for difference in found:
        print(difference)
    for name in renames.unused():
        print(f"renamed, but never found: {name!r}")
    num_requests = len({each.request for each in found})
    print(f"{len(found)} differences in {num_requests} of {len(before)} requests")
    return 1 if found else 0


def read(path: Path) -> dict[str, Json]:
    """Return the exchanges of a recording by the names of their requests."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return {told["request"]["name"]: told for told in map(json.loads, lines)}


def differences(
    old: dict[str, Json], new: dict[str, Json], renames: Renames
) -> Iterator[Difference]:
    """Yield the differences of all exchanges."""
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            yield Difference(name, "request", "asked", ABSENT)
        elif after["request"] not in (before["request"], renames.request(before["request"])):
            yield Difference(name, "request", before["request"], after["request"])
        else:
            answers = renames.answer(before["answer"]), after["answer"]
            for place, *values in of_answers(*answers):
                yield Difference(name, place, *values)
    for name in new.keys() - old.keys():
        yield Difference(name, "request", ABSENT, "asked")


def of_answers(old: Json, new: Json) -> Iterator[tuple[str, Json, Json]]:
    """Yield the paths at which two answers differ, with both values."""
    for key in ("status", "reason"):
        if old[key] != new[key]:
            yield key, old[key], new[key]
    yield from _of_headers(old["headers"], new["headers"])
    for key in ("body", "events"):
        yield from _of_texts(key, old.get(key, ABSENT), new.get(key, ABSENT))


def _of_headers(old: list[list[str]], new: list[list[str]]) -> Iterator[tuple[str, Json, Json]]:
    before, after = dict(map(tuple, old)), dict(map(tuple, new))
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in changed:
        yield f"headers.{name}", before.get(name, ABSENT), after.get(name, ABSENT)
    if old != new and not changed:
        yield "headers, their order", [name for name, _ in old], [name for name, _ in new]


def _of_texts(place: str, old: Json, new: Json) -> Iterator[tuple[str, Json, Json]]:
    """Yield the differences of two bodies, or lists of events."""
    if old == new:
        return
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{place}, how many", len(old), len(new)
        for number, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from _of_texts(f"{place}.{number}", before, after)
        return
    before, after = _parsed(old), _parsed(new)
    inner = [*_of_values(place, before, after)]
    yield from inner or [(f"{place}, as it is written", old, new)]


def _of_values(place: str, old: Json, new: Json) -> Iterator[tuple[str, Json, Json]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _of_values(f"{place}.{key}", old.get(key, ABSENT), new.get(key, ABSENT))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _of_values(f"{place}.{number}", before, after)
    elif old != new or type(old) is not type(new):
        yield place, old, new


def _parsed(text: Json) -> Json:
    """Return the JSON of a body or of an event's data, or the text if it is no JSON."""
    if not isinstance(text, str):
        return text
    head, mark, data = text.rpartition("data: ")
    try:
        value = json.loads(data if mark else text)
    except ValueError:
        return text
    return {"event": head, "data": value} if mark else value


def _short(value: Json) -> str:
    text = "nothing" if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
