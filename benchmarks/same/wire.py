"""Sends the requests of a recording, and replaces random values and times in their answers."""

import base64
import gzip
import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from same.request import Json, Request
from same.servers import Running

BOUNDARY = "same-answers-boundary"
TIMEOUT_S, UNTIL_S = 60.0, 60.0
PLACE = re.compile(r"<<([\w. -]+)>>")

Answer = dict[str, Any]
"""``status``, ``reason``, ``headers`` as pairs in their order, and ``body`` or ``events``."""

Rewrite = str | Callable[["re.Match[str]"], str]


@dataclass(frozen=True)
class Normal:
    """A part of answers that differs between runs.

    Attributes:
        what: its description.
        reason: why it differs between runs.
        where: ``header NAME`` for values of a header, ``body`` for bodies and events, ``any`` for
            both, ``events`` for the order of events.
        pattern: a regular expression of the part.
        replacement: the replacement.
    """

    what: str
    reason: str
    where: str
    pattern: str
    replacement: str


_TIMES = "created|created_at|completed_at|expires_at|cancelled_at|cancelling_at|failed_at"
_TIMES += "|in_progress_at|finalizing_at|expired_at|ended_at|cancel_initiated_at|archived_at"
NORMAL = (
    Normal("date", "a clock", "header date", r".+", "<date>"),
    Normal("length of a body", "the body is told; its times have more or fewer digits",
           "header content-length", r".+", "<length>"),
    Normal("methods of a route", "a set, in the order of hashes", "header allow",
           r".+", "<sorted>"),
    Normal("durations", "a clock", "header server-timing", r"dur=[\d.]+", "dur=<ms>"),
    Normal("time to wait", "a clock", "header retry-after", r"\d+", "<s>"),
    Normal("time until a limit is free", "a clock", "header .*ratelimit.*reset.*", r".+", "<time>"),
    Normal("durations", "a clock", "body", r"(?<=;dur=)[\d.]+", "<ms>"),
    Normal("moments", "a clock", "body", rf'("(?:{_TIMES})": ?)\d+(?:\.\d+)?', r'\1"<time>"'),
    Normal("moments", "a clock", "body", r'"\d{4}-\d\d-\d\dT[\d:.]+Z"', '"<time>"'),
    Normal("time to load", "a clock", "body", r'("load_s": ?)[\d.e-]+', r'\1"<s>"'),
    Normal("what is held", "a connection ends a moment after its answer", "body",
           r'("(?:held|total)": ?)\d+', r'\1"<count>"'),
    Normal("port", "a free one is taken", "body", r"(?<=127\.0\.0\.1:)\d+", "<port>"),
    Normal("filling", "random characters; how many of them is kept", "body",
           r'("obfuscation": ?")([0-9a-f]*)(?=")', "<filling>"),
    Normal("ids", "random; equal ones of an answer stay equal", "any",
           r"\b((?:[a-z]+_)*[a-z]+[-_])(?:[0-9a-f]{48}|[0-9a-f]{24}|[0-9a-f]{16})(?![0-9a-f])",
           "<id>"),
    Normal("usage so far", "what has come when an event is written; that of the end is kept",
           "body", r'("object":"(?:chat.completion.chunk|text_completion)","choices":\[\{.*?'
           r'"completion_tokens":)\d+,"total_tokens":\d+',
           r'\1"<so far>","total_tokens":"<so far>"'),
    Normal("order of choices", "they are computed side by side; that of each choice is kept",
           "events", r'"choices":\[\{"index":(\d+)', "<sorted>"),
    Normal("ids of calls", "random; equal ones of an answer stay equal", "body",
           r'("(?:id|call_id|tool_call_id|tool_use_id)": ?")[A-Za-z0-9]{9}(?=")', "<id>"),
)  # fmt: skip
"""All changes of answers before the comparison."""


class Wire:
    """Sends requests to one server.

    Args:
        running: the server.
        attachments: files in base64, by the names in requests.
    """

    def __init__(self, running: Running, attachments: Mapping[str, str]) -> None:
        self._running = running
        self._known = {**attachments, **{f"key {k}": v for k, v in running.keys.items()}}
        self._kept: dict[str, str] = {}

    def answer(self, request: Request) -> Answer:
        """Send a request, repeatedly if it awaits a state; return the last answer."""
        deadline = time.monotonic() + UNTIL_S
        while True:
            answer = self._sent(request)
            if request.until is None or time.monotonic() > deadline:
                break
            key, values = request.until
            if _value(answer, key) in values:
                break
            time.sleep(0.05)
        for name, key in request.keep.items():
            self._kept[name] = _value(answer, key) or "0"
        return self._normal(request, answer)

    def json(self, path: str) -> Json:
        """Return the JSON of a path."""
        return json.loads(self._sent(Request(path, "GET", path))["body"])

    def _filled(self, text: str) -> str:
        known = self._known | self._kept
        return PLACE.sub(lambda found: known[found[1]], text)

    def _sent(self, request: Request) -> Answer:
        content = self._raw(request) if request.raw is not None else self._content(request)
        with socket.create_connection(("127.0.0.1", self._running.port), TIMEOUT_S) as connection:
            try:
                connection.sendall(content)
                response = http.client.HTTPResponse(connection, method=request.method)
                response.begin()
                headers = [[name, value] for name, value in response.getheaders()]
                told = {"status": response.status, "reason": response.reason, "headers": headers}
                return told | {"body": _text(response.read())}
            except (OSError, http.client.HTTPException) as error:
                return {"status": 0, "reason": type(error).__name__, "headers": [], "body": ""}

    def _raw(self, request: Request) -> bytes:
        assert request.raw is not None
        return self._filled(request.raw).encode("latin-1")

    def _content(self, request: Request) -> bytes:
        kind, body = "application/json", b""
        if request.body is not None:
            body = self._filled(json.dumps(request.body)).encode()
        elif request.text is not None:
            body = self._filled(request.text).encode()
        elif request.form is not None:
            kind, body = f"multipart/form-data; boundary={BOUNDARY}", self._multipart(request.form)
        headers = {"host": f"127.0.0.1:{self._running.port}"}
        if body or request.method == "POST":
            body = gzip.compress(body, mtime=0) if request.gzip else body
            headers |= {"content-type": kind, "content-length": str(len(body))}
        headers |= {name: self._filled(value) for name, value in request.headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        line = f"{request.method} {self._filled(request.path)} HTTP/1.1\r\n"
        return f"{line}{head}\r\n".encode("latin-1") + body

    def _multipart(self, form: Mapping[str, str]) -> bytes:
        parts = []
        for name, value in form.items():
            is_file, _, file_name = name.partition(" ")
            label = f'; filename="{file_name}"' if file_name else ""
            filled = self._filled(value)
            content = filled.encode()
            if value.startswith("<<") and value.endswith(">>") and file_name:
                content = base64.b64decode(filled)
            head = (
                f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{is_file}"{label}\r\n\r\n'
            )
            parts.append(head.encode() + content + b"\r\n")
        return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()

    def _normal(self, request: Request, answer: Answer) -> Answer:
        """Return an answer with random values and times replaced."""
        numbers: dict[str, int] = {}
        known = {value: f"<<{name}>>" for name, value in self._kept.items() if len(value) > 8}
        known |= {value: f"<<key {name}>>" for name, value in self._running.keys.items()}
        known[str(self._running.folder)] = "<folder>"
        clean = partial(_cleaned, known=known, numbers=numbers)
        headers = [[k, clean(v, f"header {k.lower()}")] for k, v in answer["headers"]]
        kinds = {name.lower(): value for name, value in headers}
        body = clean(answer["body"], "body")
        told: Answer = {**answer, "headers": headers}
        del told["body"]
        if kinds.get("content-type", "").startswith("text/event-stream"):
            return told | {"events": by_choice(body.split("\n\n"))}
        if request.path.startswith("/metrics") and answer["status"] == 200:
            body = metric_names(body)
        return told | {"body": body}


def by_choice(events: list[str]) -> list[str]:
    """Return events with consecutive events of several choices grouped by choice."""
    (pattern,) = (normal.pattern for normal in NORMAL if normal.where == "events")
    found = [re.search(pattern, event) for event in events]
    runs = groupby(zip(found, events, strict=True), key=lambda pair: pair[0] is not None)
    ordered = []
    for is_of_choice, run in runs:
        pairs = [(int(each[1]) if each else 0, event) for each, event in run]
        ordered += sorted(pairs, key=itemgetter(0)) if is_of_choice else pairs
    return [event for _, event in ordered]


def metric_names(text: str) -> str:
    """Return the names, labels and comments of metrics, without values."""
    lines = [
        line if line.startswith("#") else re.sub(r'="[^"]*"', "", line.rpartition(" ")[0])
        for line in text.splitlines()
    ]
    return "\n".join(dict.fromkeys(lines))


def _cleaned(text: str, where: str, known: Mapping[str, str], numbers: dict[str, int]) -> str:
    for value, name in known.items():
        text = text.replace(value, name)

    def numbered(found: "re.Match[str]") -> str:
        number = numbers.setdefault(found[0].rpartition('"')[2], len(numbers) + 1)
        return f"{found[1]}<id {number}>"

    def filled(found: "re.Match[str]") -> str:
        return f"{found[1]}<{len(found[2])} characters>"

    def ordered(found: "re.Match[str]") -> str:
        return ", ".join(sorted(found[0].split(", ")))

    rewrites: dict[str, Rewrite] = {"<id>": numbered, "<filling>": filled, "<sorted>": ordered}
    for normal in NORMAL:
        if normal.where == "any" or re.fullmatch(normal.where, where):
            text = re.sub(
                normal.pattern, rewrites.get(normal.replacement, normal.replacement), text
            )
    return text


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(content).decode()


def _value(answer: Answer, key: str) -> str:
    """Return a value of the answer's object, or of the first object of its list, as text."""
    try:
        value = json.loads(answer["body"])
        for step in key.split("."):
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (ValueError, KeyError, TypeError, IndexError):
        return ""
    return str(value)
