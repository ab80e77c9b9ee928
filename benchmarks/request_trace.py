"""Traces the files of vlmkit that a request enters, and counts the calls of each further token.

    python benchmarks/request_trace.py
    python benchmarks/request_trace.py --list
    python benchmarks/request_trace.py --whole

``vlmkit serve mock`` runs in this process. After a warm-up, a client requests chat completions over
an open connection, streamed ones unless ``--whole`` is given: one with an image and a tool that the
answer calls, and one of text alone. If a constraint compiler such as vlmkit-guidance is installed,
tool calls follow their schema, and each token costs more.

From the first byte of the request to the last byte of the answer, every call of a Python function
whose source is in a package ``vlmkit*`` is recorded:

* ``files``: distinct source files of the called functions. Resuming a generator or a coroutine
  counts as a call; comprehensions and lambdas belong to their file.
* ``changes``: how often two consecutive calls on one thread are in different files. Functions of
  other packages and returns do not count.
* ``a further token``: the difference between answers of 120 and 20 tokens, for each token. Steps
  are 5 ms apart, so tokens are streamed one by one.
* ``beside further tokens``: an answer of 20 tokens, minus 19 further tokens.

Other processes, such as an isolated decoder, are not traced, and neither are timers of the server,
which run without requests, too. Threads make repeats differ, so minimum and maximum are printed.
"""

import argparse
import base64
import io
import json
import os
import re
import runpy
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType

from PIL import Image
from tables import markdown

STEP_S = 0.005
FEW_TOKENS, MANY_TOKENS = 20, 120
ANSWER = "I look at the picture."
KINDS = {"image and tool": frozenset(("image", "tool")), "text": frozenset[str]()}


@dataclass
class Trace:
    """The calls of one request.

    Attributes:
        first_thread: by file, the thread that entered it first; in order of first entry.
        calls: the number of calls, by thread.
        changes: the number of changes of the file, by thread.
        last: the file of the last call, by thread.
        seen: the files that were entered, by thread.
    """

    first_thread: dict[str, int] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    changes: dict[int, int] = field(default_factory=dict)
    last: dict[int, str] = field(default_factory=dict)
    seen: dict[int, set[str]] = field(default_factory=dict)

    def num_files(self, thread: int | None) -> int:
        """Return the number of files that one or all threads entered."""
        return len(self.first_thread if thread is None else self.seen.get(thread, ()))

    def num_changes(self, thread: int | None) -> int:
        """Return the number of changes of one or all threads."""
        return sum(self.changes.values()) if thread is None else self.changes.get(thread, 0)

    def num_calls(self, thread: int | None) -> int:
        """Return the number of calls of one or all threads."""
        return sum(self.calls.values()) if thread is None else self.calls.get(thread, 0)

    def note(self, file: str) -> None:
        """Record a call on this thread."""
        thread = threading.get_ident()
        self.first_thread.setdefault(file, thread)
        self.seen.setdefault(thread, set()).add(file)
        self.calls[thread] = self.calls.get(thread, 0) + 1
        if self.last.setdefault(thread, file) != file:
            self.changes[thread] = self.changes.get(thread, 0) + 1
            self.last[thread] = file


Count = Callable[[Trace, int | None], int]
"""Counts the calls of one thread, or of all threads."""

TIMERS = {
    ("vlmkit_server/run.py", "on_tick"),
    ("vlmkit_server/exchange/monitors.py", "_watch_lag"),
}
"""Functions that run periodically, whether there are requests or not."""

COUNTS: dict[str, Count] = {"changes": Trace.num_changes, "calls": Trace.num_calls}


class Recorder:
    """Records calls while it is on, in every thread that starts after its installation."""

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self._files: dict[CodeType, str | None] = {}
        self._timers: dict[int, FrameType] = {}  # the running timer of each thread

    def install(self) -> None:
        """Trace this thread, and those that start later."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG002
        thread = threading.get_ident()
        if event == "return" and self._timers.get(thread) is frame:
            del self._timers[thread]
        if event != "call" or (trace := self.trace) is None or thread in self._timers:
            return
        code = frame.f_code
        if code not in self._files:
            self._files[code] = file_of(code.co_filename)
        file = self._files[code]
        if (file, code.co_name) in TIMERS:
            self._timers[thread] = frame
        elif file is not None:
            trace.note(file)


def file_of(path: str) -> str | None:
    """Return a source path from its package ``vlmkit*`` on; None for another package."""
    names = path.replace(os.sep, "/").split("/")
    for place in range(len(names) - 1, 0, -1):
        if names[place - 1] in ("src", "site-packages"):
            return "/".join(names[place:]) if names[place].startswith("vlmkit") else None
    return None


class Client(threading.Thread):
    """Sends requests, prints the traces and ends the server.

    Args:
        port: the port of the server.
        options: the options of the command line.
        recorder: the recorder of the server's calls.
    """

    def __init__(self, port: int, options: argparse.Namespace, recorder: Recorder) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._options = options
        self._recorder = recorder

    def run(self) -> None:
        """Run the client; it starts before the recorder is installed, so it is not traced."""
        try:
            while not self._is_ready():
                time.sleep(0.1)
            found = {kind: self._measured(parts) for kind, parts in KINDS.items()}
            report(found, lists=self._options.list)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 60) as connection:
                connection.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                return b" 200 " in connection.recv(4096).partition(b"\r\n")[0]
        except OSError:
            return False

    def _measured(self, parts: frozenset[str]) -> "Measured":
        """Request answers that end by themselves, and long and short ones."""
        for _ in range(3):
            self._ask(parts)
            self._ask(parts, FEW_TOKENS)
        turns = range(self._options.repeats)
        return Measured(
            [self._ask(parts) for _ in turns],
            [self._ask(parts, FEW_TOKENS) for _ in turns],
            [self._ask(parts, MANY_TOKENS) for _ in turns],
        )

    def _ask(self, parts: frozenset[str], num_tokens: int | None = None) -> Trace:
        """Send a request over an open connection; return the trace of the server until its end."""
        content = body(parts, num_tokens, streamed=not self._options.whole)
        with socket.create_connection(("127.0.0.1", self._port), 60) as connection:
            time.sleep(0.2)  # until the server has accepted the connection
            trace = self._recorder.trace = Trace()
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(content), content)
            )
            answer = b""
            while not is_complete(answer):
                piece = connection.recv(65_536)
                assert piece, answer
                answer += piece
            self._recorder.trace = None
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        return trace


def is_complete(answer: bytes) -> bool:
    """Tell whether a response has ended, by its length or its last chunk."""
    head, _, content = answer.partition(b"\r\n\r\n")
    if found := re.search(rb"content-length: (\d+)", head):
        return len(content) >= int(found.group(1))
    return content.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def body(parts: frozenset[str], num_tokens: int | None, *, streamed: bool) -> bytes:
    """Return a request for a sentence (and a call if it has a tool), or for a number of tokens."""
    script: dict[str, object] = {"text": ANSWER, "latency_s": STEP_S}
    if num_tokens is not None:
        script |= {"text": "token ", "tokens": num_tokens}
    elif "tool" in parts:
        script["calls"] = [{"name": "mark", "arguments": {"x": 1}}]
    content: list[object] = [{"type": "text", "text": json.dumps({"mock": script})}]
    if "image" in parts:
        content.insert(0, {"type": "image_url", "image_url": {"url": new_image()}})
    asked = {
        "model": "mock",
        "stream": streamed,
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": content}],
    }
    if "tool" in parts:
        parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
        function = {"name": "mark", "parameters": parameters}
        asked["tools"] = [{"type": "function", "function": function}]
    return json.dumps(asked).encode()


def new_image() -> str:
    """Return a URL of an image of noise, which no cache has."""
    file = io.BytesIO()
    Image.effect_noise((320, 240), 90).convert("RGB").save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@dataclass
class Measured:
    """The traces of requests of one kind.

    Attributes:
        whole: traces of answers that end by themselves.
        few: traces of answers of few tokens.
        many: traces of answers of many tokens.
    """

    whole: list[Trace]
    few: list[Trace]
    many: list[Trace]

    def rows(self, kind: str, event_loop: int) -> list[tuple[str, str, str]]:
        """Return the rows of a table: all threads, and the event loop's thread."""
        threads = (None, event_loop)
        rows = [
            (
                f"{kind}: {name}",
                *(between([of(t, thread) for t in self.whole]) for thread in threads),
            )
            for name, of in {"files": Trace.num_files, **COUNTS}.items()
        ]
        for name, of in COUNTS.items():
            further = [self._further(of, thread) for thread in threads]
            beside = [self._beside_further(of, thread) for thread in threads]
            rows.append((f"{kind}: {name} a further token", *map(between, further)))
            rows.append((f"{kind}: {name} beside further tokens", *map(between, beside)))
        return rows

    def _further(self, count: Count, thread: int | None) -> list[float]:
        """Return the count of a further token, for each pair of answers."""
        return [
            (count(many, thread) - count(few, thread)) / (MANY_TOKENS - FEW_TOKENS)
            for few, many in zip(self.few, self.many, strict=True)
        ]

    def _beside_further(self, count: Count, thread: int | None) -> list[float]:
        """Return how many a request has that further tokens do not have."""
        further = statistics.median(self._further(count, thread))
        return [round(count(few, thread) - (FEW_TOKENS - 1) * further) for few in self.few]


def report(found: dict[str, Measured], *, lists: bool) -> None:
    """Print the table, and the files of the last request in order of first entry."""
    event_loop = threading.main_thread().ident
    assert event_loop is not None
    rows = [row for kind, measured in found.items() for row in measured.rows(kind, event_loop)]
    print(markdown(["one request", "all threads", "event loop"], rows))
    for kind, measured in found.items() if lists else ():
        print(f"\n{kind}:")
        for file, thread in measured.whole[-1].first_thread.items():
            print(file, "" if thread == event_loop else "(first in another thread)")
    sys.stdout.flush()


def between(numbers: Sequence[float]) -> str:
    """Return the median with minimum and maximum."""
    return f"{statistics.median(numbers):,g} ({min(numbers):,g} to {max(numbers):,g})"


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--list", action="store_true", help="print the files in order of first entry"
    )
    parser.add_argument("--whole", action="store_true", help="do not stream the answers")
    parser.add_argument("--set", action="append", default=[], help="a setting of the server")
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    recorder = Recorder()
    Client(port, options, recorder).start()
    recorder.install()
    settings = [f"--set={each}" for each in options.set]
    sys.argv = ["vlmkit", "serve", "mock", "--port", str(port), *settings]
    runpy.run_module("vlmkit", run_name="__main__")


if __name__ == "__main__":
    main()
