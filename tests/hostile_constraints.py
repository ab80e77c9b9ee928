"""Attacks a server with constraints of doubling size in all constructs, and prints their costs.

Run it by hand: ``python tests/hostile_constraints.py``. Figures depend on the machine. Tests assert
only the limits that the server enforces itself.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

PAGE_BYTES = 4096
START_S = 300
NUM_WORST = 1000
NUM_HOSTILE, NUM_HONEST = 8, 4
REFUSED_S = 0.05  # until the next connection: a closed port must not cost the server its processor


class Target(NamedTuple):
    """A server under attack."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path
    http: httpx2.Client

    def post(self, body: Any, path: str = "/v1/chat/completions") -> httpx2.Response:
        return self.http.post(f"{self.url}{path}", json=body)


@contextlib.contextmanager
def served(folder: Path, model: str = "mock", **settings: Any) -> Iterator[Target]:
    """Run a server; settings have dots as two underscores."""
    log = folder / "log"
    command = [sys.executable, "-m", "vlmkit", "serve", model, "--port", "0"]
    for name, value in settings.items():
        command += ["--set", f"{name.replace('__', '.')}={json.dumps(value)}"]
    with log.open("wb") as file, subprocess.Popen(command, cwd=folder, stderr=file) as process:
        try:
            ends_s = time.monotonic() + START_S
            while " is ready" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < ends_s, log.read_text()
                time.sleep(0.05)
            found = re.search(r"listening on (\S+)\n", log.read_text())
            assert found
            with httpx2.Client(timeout=START_S) as http:
                yield Target(process, found[1], log, http)
        finally:
            process.kill()


def bodies(constraint: dict[str, Any], model: str = "mock") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the ways to ask for a constraint, each a path and a body."""
    said = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    yield "/v1/chat/completions", said | {"structured_outputs": constraint}
    prompt = {"model": model, "prompt": "hello", "max_tokens": 4}
    yield "/v1/completions", prompt | {"structured_outputs": constraint}
    if (schema := constraint.get("json")) is None:
        return
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    yield "/v1/chat/completions", said | {"response_format": named}
    text = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    yield "/v1/responses", {"model": model, "input": "hello", "text": text}
    form = {"format": {"type": "json_schema", "schema": schema}}
    yield "/v1/messages", said | {"output_config": form}
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": schema}}
        for number in range(8)
    ]
    for choice in ("auto", "required"):
        yield "/v1/chat/completions", said | {"tools": tools, "tool_choice": choice}


def constraints() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every construct that has a number or a list, with doubling sizes, and its name."""
    for power in range(0, 32, 2):
        num = 2**power
        for name, constraint in _of_size(num):
            if len(json.dumps(constraint)) < 2**18:
                yield f"{name} {num}", constraint


def _of_size(num: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from _numbers(num)
    yield from _patterns(num)
    if num < 2**17:
        yield from _lists(num)


def _numbers(num: int) -> Iterator[tuple[str, dict[str, Any]]]:
    odd = num * 2 - 1
    schemas: dict[str, dict[str, Any]] = {
        "multipleOf": {"type": "integer", "multipleOf": odd},
        "multipleOf number": {"type": "number", "multipleOf": odd},
        "multipleOf fraction": {"type": "number", "multipleOf": 1 / num},
        "multipleOf allOf": {"allOf": [{"multipleOf": n} for n in (2, 3, odd)]},
        "multipleOf anyOf": {"anyOf": [{"type": "integer", "multipleOf": n} for n in (7, odd)]},
        "multipleOf range": {"type": "integer", "multipleOf": odd, "minimum": 1, "maximum": num**2},
        "minItems": {"type": "array", "items": {"const": "a"}, "minItems": num},
        "maxItems": {"type": "array", "items": {"type": "object"}, "maxItems": num},
        "minProperties": {"type": "object", "minProperties": num},
        "maxProperties": {"type": "object", "maxProperties": num},
        "minLength": {"type": "string", "minLength": num},
        "maxLength": {"type": "string", "maxLength": num},
        "minLength pattern": {"type": "string", "minLength": num, "pattern": "(a|b)*a(a|b){9}"},
    }
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        for kind in ("integer", "number"):
            for sign in (1, -1):
                schemas[f"{key} {kind} {sign}"] = {"type": kind, key: sign * num**3}
    for name, schema in schemas.items():
        yield name, {"json": schema}


def _patterns(num: int) -> Iterator[tuple[str, dict[str, Any]]]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    patterns = {
        "{n}": f"a{{{num}}}",
        "{0,n}": f".{{0,{num}}}",
        "{n,}": rf"\w{{{num},}}",
        "nested": f"((a{{{num}}}){{{num}}}){{{num}}}",
        "nested 2": f"(a{{{num}}}b?){{{num}}}",
        "states": f"(a|b)*a(a|b){{{num}}}",
        "letters": "|".join(f"[a-z]*{letter}[a-z]{{{num}}}" for letter in letters),
        "classes": rf"(\p{{L}}\p{{N}}?){{1,{num}}}",
        "stars": f"(.*a){{{num}}}",
    }
    for name, pattern in patterns.items():
        yield f"regex {name}", {"regex": pattern}
        yield f"pattern {name}", {"json": {"type": "string", "pattern": f"^{pattern}$"}}
    rules = {
        "{n}": f'start: "a"{{{num}}}',
        "~": f'start: "a"~{num}',
        "~..": f'start: ("a" | "b")~1..{num}',
        "terminal": f"start: A\nA: B{{{num}}}\nB: C{{{num}}}\nC: /a{{{num}}}/",
        "rules": f'start: a{{{num}}}\na: b{{{num}}}\nb: "x"{{{num}}}',
        "ambiguous": f'start: (("a" | "aa"){{1,{num}}}){{1,{num}}}',
        "json": f'start: %json {{"multipleOf": {num * 2 - 1}}}',
    }
    for name, grammar in rules.items():
        yield f"lark {name}", {"grammar": grammar}


def _lists(num: int) -> Iterator[tuple[str, dict[str, Any]]]:
    names = [f"p{number}" for number in range(num)]
    string = {"type": "string"}
    deep: dict[str, Any] = string
    for _ in range(min(num, 400)):
        deep = {"type": "array", "items": deep}
    objects = [{"type": "object", "properties": {n: string}, "required": [n]} for n in names]
    pairs = [
        {"anyOf": [objects[at], {"type": "object", "properties": {f"q{at}": {}}}]}
        for at in range(num)
    ]
    chain = {
        f"d{at}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{at + 1}"}] * 4}
        for at in range(num)
    }
    schemas: dict[str, dict[str, Any]] = {
        "enum": {"enum": names},
        "const": {"const": "x" * num},
        "properties": {"type": "object", "properties": dict.fromkeys(names, string)},
        "required": {"type": "object", "required": names},
        "required properties": {
            "type": "object",
            "properties": dict.fromkeys(names, string),
            "required": names,
        },
        "patternProperties": {"type": "object", "patternProperties": {f"^{n}$": {} for n in names}},
        "anyOf": {"anyOf": objects},
        "oneOf": {"oneOf": objects},
        "allOf": {"allOf": objects},
        "anyOf product": {"allOf": pairs},
        "prefixItems": {"type": "array", "prefixItems": [string] * num},
        "depth": deep,
        "$ref chain": {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{num}": {"const": 1}}},
        "$ref loop": {
            "type": "object",
            "properties": {"a" * num: {"$ref": "#"}},
            "required": ["a" * num],
            "additionalProperties": False,
        },
    }
    for name, schema in schemas.items():
        yield name, {"json": schema}
    yield "choice", {"choice": [f"{name} and more" for name in names]}
    yield "choice length", {"choice": ["x" * num, "y" * num]}
    yield "regex alternatives", {"regex": f"({'|'.join(names)})*"}
    yield "regex length", {"regex": "ab" * num}
    yield "regex brackets", {"regex": "(" * num + "a" + ")" * num}
    yield (
        "lark rules",
        {
            "grammar": "\n".join(
                [f"start: {' | '.join(f'r{at}' for at in range(num))}"]
                + [f'r{at}: "{at}" r{(at * 7 + 1) % num}?' for at in range(num)]
            )
        },
    )
    yield "lark loop", {"grammar": f'start: A start\nA: "{"a" * num}"'}
    yield "lark optional", {"grammar": f"start: {' '.join(['a?'] * num)}\na: /x/"}
    yield (
        "lark doubling",
        {
            "grammar": "\n".join(
                ["start: r0"]
                + [f"r{at}: r{at + 1} r{at + 1}" for at in range(min(num, 999))]
                + [f'r{min(num, 999)}: "x"']
            )
        },
    )
    yield (
        "lark substring",
        {"grammar": f'start: A\nA: %regex {{"substring_chars": "{"ab" * num}"}}'},
    )


def resident_bytes(pid: int) -> int:
    """Return the memory of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    return 0


def children(pid: int) -> list[int]:
    """Return the processes right below one."""
    found = []
    for stat in (entry / "stat" for entry in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def cpu_s(pid: int, *, of_ended_children: bool = False) -> float:
    """Return the CPU time of a process, or of its children that have ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        first = 13 if of_ended_children else 11
        return (int(fields[first]) + int(fields[first + 1])) / 100
    return 0.0


class Attack:
    """Sends constraints one by one and keeps the largest figures.

    Args:
        target: the server.

    Attributes:
        figures: the measured maxima.
        dearest: names and CPU time of the longest trials.
        slowest: names, and the duration of a concurrent request to ``/healthz``.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        target.post(dict(bodies({"choice": ["yes", "no"]}))["/v1/chat/completions"])
        self._began_bytes = resident_bytes(target.process.pid)
        self.figures: dict[str, Any] = {
            "constraints": 0,
            "answers other than 200 and 400": 0,
            "largest CPU time of a trial, s": 0.0,
            "largest CPU time of the server for one, s": 0.0,
            "largest growth of a trial, MiB": 0,
            "largest growth of the server, MiB": 0,
        }
        self.statuses: Counter[int] = Counter()
        self.dearest: list[tuple[float, str, int]] = []
        self.slowest: list[tuple[float, str]] = []

    @property
    def worker(self) -> int | None:
        """The constraint worker's process."""
        return next(iter(children(self._target.process.pid)), None)

    def send(self, name: str, constraint: dict[str, Any]) -> int:
        """Ask for a constraint; return the status of the answer."""
        server, worker = self._target.process.pid, self.worker
        before = cpu_s(server), cpu_s(worker or 0, of_ended_children=True)
        with self._watched(worker) as most:
            answer = self._target.post(dict(bodies(constraint))["/v1/chat/completions"])
        taken = cpu_s(worker or 0, of_ended_children=True) - before[1]
        self.statuses[answer.status_code] += 1
        self.dearest.append((taken, name, answer.status_code))
        figures = self.figures
        figures["constraints"] += 1
        figures["answers other than 200 and 400"] += answer.status_code not in (200, 400)
        for key, value in (
            ("largest CPU time of a trial, s", taken),
            ("largest CPU time of the server for one, s", cpu_s(server) - before[0]),
            ("largest growth of a trial, MiB", most[0] >> 20),
            ("largest growth of the server, MiB", resident_bytes(server) - self._began_bytes >> 20),
        ):
            figures[key] = max(figures[key], value)
        return answer.status_code

    @contextlib.contextmanager
    def _watched(self, worker: int | None) -> Iterator[list[int]]:
        """Yield a holder for the largest memory growth of a trial, in bytes."""
        most, is_over = [0], threading.Event()

        def watch() -> None:
            own = resident_bytes(worker or 0)
            while not is_over.wait(0.005):
                for pid in children(worker) if worker else ():
                    most[0] = max(most[0], resident_bytes(pid) - own)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield most
        finally:
            is_over.set()
            watching.join()


@contextlib.contextmanager
def health_watched(target: Target) -> Iterator[list[float]]:
    """Yield the times of requests to ``/healthz``, one after the other."""
    times, is_over = list[float](), threading.Event()

    def watch() -> None:
        with httpx2.Client(timeout=START_S) as http:
            while not is_over.wait(0.02):
                began_s = time.perf_counter()
                http.get(f"{target.url}/healthz")
                times.append(time.perf_counter() - began_s)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield times
    finally:
        is_over.set()
        watching.join()


def connect_and_leave(url: str, content: bytes, stay_s: float) -> None:
    """Send a request and disconnect without reading."""
    address = urlsplit(url)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connecting = socket.create_connection
    try:
        with connecting((address.hostname, address.port), timeout=60) as connection:
            connection.sendall(head.encode() + content)
            time.sleep(stay_s)
    except OSError:
        time.sleep(REFUSED_S)


def throughput(target: Target, seconds: float) -> float:
    """Return honest answers a second."""
    address = urlsplit(target.url)
    said = [{"role": "user", "content": "hello"}]
    body = json.dumps({"model": "mock", "messages": said, "max_tokens": 16})
    ends_s, num = time.monotonic() + seconds, Counter[int]()

    def ask(_: int) -> None:
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        while time.monotonic() < ends_s:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", body, headers)
            answer = connection.getresponse()
            answer.read()
            num[answer.status] += 1

    with ThreadPoolExecutor(NUM_HONEST) as clients:
        list(clients.map(ask, range(NUM_HONEST)))
    return num[200] / seconds


@contextlib.contextmanager
def hostile_clients(target: Target, names: list[str]) -> Iterator[None]:
    """Let a process of clients repeatedly connect, request the named constraints and disconnect.

    A separate process leaves the CPU time of this one alone.
    """
    command = [sys.executable, __file__, "--flood", target.url, *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as flooding:
        assert flooding.stdout is not None
        flooding.stdout.readline()
        try:
            yield
        finally:
            flooding.kill()


def flood(url: str, names: list[str]) -> None:
    """Run hostile clients until this process is killed."""
    found = dict(constraints())
    sent = [json.dumps(next(bodies(found[name]))[1]).encode() for name in names]
    print("ready", flush=True)

    def attack(number: int) -> None:
        for at in itertools.count(number, NUM_HOSTILE):
            connect_and_leave(url, sent[at % len(sent)], 0.05 * (at % 7))

    for number in range(NUM_HOSTILE):
        threading.Thread(target=attack, args=(number,)).start()


def main() -> None:
    """Run the full attack and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each throughput run")
    parser.add_argument("--flood", nargs="+", metavar=("URL", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flood:
        flood(options.flood[0], options.flood[1:])
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), server__drain_timeout_s=5.0) as target,
    ):
        attack = Attack(target)
        with health_watched(target) as idle:
            time.sleep(3)
        with health_watched(target) as times:
            num_seen = 0
            for name, constraint in constraints():
                attack.send(name, constraint)
                meanwhile = times[num_seen:]
                num_seen += len(meanwhile)
                attack.slowest.append((max(meanwhile, default=0.0), name))
        attack.dearest.sort(reverse=True)
        attack.slowest.sort(reverse=True)
        print(json.dumps(attack.figures, indent=1), dict(attack.statuses))
        print(
            "dearest:",
            *(f"{s:.2f} s {name} ({status})" for s, name, status in attack.dearest[:12]),
            sep="\n  ",
        )
        print(
            "slowest /healthz during:",
            *(f"{s * 1000:.0f} ms {name}" for s, name in attack.slowest[:8]),
            sep="\n  ",
        )
        _print_health("healthz, idle", idle)
        _print_health("healthz, during the sweep", times)
        found = dict(constraints())
        names = [name for _, name, _ in attack.dearest[:20]]
        worst = [found[name] for name in names]
        before = resident_bytes(target.process.pid)
        with ThreadPoolExecutor(4) as clients:
            list(
                clients.map(
                    lambda at: attack_once(target, worst[at % len(worst)]), range(NUM_WORST)
                )
            )
        time.sleep(1)
        growth = resident_bytes(target.process.pid) - before
        print(f"server after {NUM_WORST} of the worst: {growth / 2**20:+.1f} MiB", end=", ")
        print(f"{before >> 20} MiB before")
        alone = [throughput(target, options.seconds)]
        with hostile_clients(target, names), health_watched(target) as times:
            together = throughput(target, options.seconds)
        alone.append(throughput(target, options.seconds))
        ratio = 2 * together / sum(alone)
        print(f"honest answers a second: {alone[0]:.1f} and {alone[1]:.1f} alone", end=", ")
        print(f"{together:.1f} beside {NUM_HOSTILE} hostile clients: {ratio:.2f}")
        _print_health("healthz, meanwhile", times)
        with hostile_clients(target, names):
            time.sleep(1)
            began_s = time.monotonic()
            target.process.terminate()
            target.process.wait(60)
            print(f"SIGTERM to end: {time.monotonic() - began_s:.1f} s, drain time 5 s")


def attack_once(target: Target, constraint: dict[str, Any]) -> None:
    """Ask for a constraint and read the answer."""
    target.post(dict(bodies(constraint))["/v1/chat/completions"])


def _print_health(name: str, times: list[float]) -> None:
    ordered = sorted(times)
    middle, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    told = {"median": middle, "99 %": high, "most": ordered[-1]}
    times_ms = ", ".join(f"{what} {seconds * 1000:.0f} ms" for what, seconds in told.items())
    print(f"{name}: {len(ordered)} requests, {times_ms}")


if __name__ == "__main__":
    main()
