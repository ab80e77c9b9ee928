"""Runs a server under mixed load for a long time, and checks answers, memory and leaks.

    python benchmarks/soak.py --minutes 30 --clients 64 --idle 10000 --bad 50000 --chart soak.svg

One server process serves the mock and the packaged model. Honest clients send requests of ten kinds
with known answers, and abandon one in six. Other clients send invalid requests, and hold idle
connections in the middle third. Hostile clients send costly constraints, decompression bombs,
pipelines and long boundaries, and abandon every second request. One child process of the server is
killed each minute. The program prints the counts and writes a chart of memory, descriptors, answers
and delays. It exits with code 1 if an answer was wrong, a request failed, the log contains client
data, or resources remain at the end.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chart
import server
import soak_attacks
import soak_clients

LOOK_S = 5.0
KILL_EVERY_S = 60.0
SETTLE_S = 10.0
QUESTIONS = ["What is in this picture?", "What does it say?", "How many shapes are there?"]


@dataclass
class Course:
    """Samples of the server, taken every few seconds.

    Attributes:
        started: the start by ``time.time``.
        rows: seconds since the start, and the measured values.
        kills: the times at which a process was killed.
    """

    started: float = field(default_factory=time.time)
    rows: list[dict[str, float]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)

    def line(self, name: str) -> list[tuple[float, float]]:
        """Return one figure over time."""
        return [(row["at_s"], row[name]) for row in self.rows]


def children(process_id: int) -> list[int]:
    """Return the descendants of a process, its children first."""
    found = []
    for task in Path(f"/proc/{process_id}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(p) for p in (task / "children").read_text().split()]
    return found + [p for child in found for p in _gone_is_none(child)]


def _gone_is_none(process_id: int) -> list[int]:
    try:
        return children(process_id)
    except OSError:
        return []


def resident_mib(process_id: int) -> float:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0


def look(address: server.Address, at_s: float) -> dict[str, float]:
    """Return the resources of the server, and the time of a health check."""
    started = time.perf_counter()
    with urllib.request.urlopen(f"{_base(address)}/healthz", timeout=60) as answer:
        answer.read()
    health_ms = (time.perf_counter() - started) * 1000
    process_id = address.process_id
    return {
        "at_s": at_s,
        "health_ms": health_ms,
        "server_mib": resident_mib(process_id),
        "others_mib": sum(map(resident_mib, children(process_id))),
        "descriptors": _num_files(f"/proc/{process_id}/fd"),
        "threads": _num_files(f"/proc/{process_id}/task"),
        "shared_files": _num_files("/dev/shm"),
    }


def _num_files(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def watch(address: server.Address, course: Course, is_over: threading.Event) -> None:
    """Sample the server repeatedly, and kill one of its child processes each minute."""
    chance = random.Random(0)
    next_kill = time.time() + KILL_EVERY_S
    while not is_over.wait(LOOK_S):
        course.rows.append(look(address, time.time() - course.started))
        below = children(address.process_id)
        if below and time.time() > next_kill:
            next_kill = time.time() + KILL_EVERY_S
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(below), signal.SIGKILL)
                course.kills.append(time.time() - course.started)


def known_answers(port: int, path: Path) -> None:
    """Write the answers of the packaged model without other load."""
    images = soak_clients.sample_images()
    known = {}
    for number in range(len(images)):
        for question in QUESTIONS:
            asked = f"{number} {question}"
            content = json.dumps(soak_clients.demo_body(asked, images)).encode()
            _, body, _ = asyncio.run(soak_clients.sent(port, "/v1/chat/completions", content))
            answer = soak_clients.parsed(body, is_stream=False)
            known[asked] = answer["choices"][0]["message"]["content"]
    path.write_text(json.dumps(known))


def part(name: str, port: int, **options: object) -> "subprocess.Popen[str]":
    """Start a group of clients."""
    flags = [f for k, v in options.items() for f in (f"--{k}", str(v))]
    script = ["soak_attacks.py"] if name == "hostile" else ["soak_clients.py", name]
    command = [sys.executable, str(server.HERE / script[0]), *script[1:], str(port), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for a group of clients; return its counts."""
    output, _ = process.communicate()
    seen: dict[str, Any] = json.loads(output)
    return seen


def soak(options: argparse.Namespace, address: server.Address, folder: Path) -> dict[str, Any]:
    """Run all groups of clients; return their counts."""
    port, seconds = options.port, options.minutes * 60
    known_answers(port, folder / "known.json")
    before = look(address, 0)
    course, is_over = Course(), threading.Event()
    watcher = threading.Thread(target=watch, args=(address, course, is_over))
    watcher.start()
    many = [
        part("honest", port, seconds=seconds, clients=n, seed=k, known=folder / "known.json")
        for k, n in enumerate((options.clients // 2, options.clients - options.clients // 2))
    ]
    bad = part("bad", port, seconds=seconds * 0.95, requests=options.bad, seed=7)
    hostile = part("hostile", port, seconds=seconds * 0.95, clients=options.hostile, seed=11)
    time.sleep(seconds / 3)
    idle_from = time.time() - course.started
    idle = part("idle", port, seconds=seconds / 3, clients=options.idle)
    seen = {"idle": result(idle)}
    idle_to = time.time() - course.started
    honest = [result(process) for process in many]
    seen |= {"honest": merged(honest), "bad": result(bad), "hostile": result(hostile)}
    is_over.set()
    watcher.join()
    time.sleep(SETTLE_S)
    marks = {"idle connections": idle_from, "they leave": idle_to}
    return seen | {
        "before": before,
        "after": look(address, seconds),
        "course": course,
        "marks": marks,
        "ready": ready(address),
    }


def merged(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of several groups as one."""
    names = sorted({name for one in seen for name in one["counts"]})
    return {
        "counts": {name: sum(one["counts"].get(name, 0) for one in seen) for name in names},
        "wrong": [text for one in seen for text in one["wrong"]],
        "first_token_s": sorted(tuple(pair) for one in seen for pair in one["first_token_s"]),
    }


def ready(address: server.Address) -> Any:
    """Return the readiness report of the server."""
    with urllib.request.urlopen(f"{_base(address)}/readyz", timeout=60) as answer:
        return json.load(answer)


def draw(seen: dict[str, Any], seconds: float) -> str:
    """Return the chart of a run."""
    course, first = seen["course"], seen["honest"]["first_token_s"]
    bins: dict[int, list[float]] = {}
    for at, wait in first:
        bins.setdefault(int((at - course.started) // 15), []).append(wait)
    middles = [((b + 0.5) * 15, w) for b, w in sorted(bins.items()) if 0 <= b * 15 < seconds]
    panels = [
        chart.Panel(
            "memory, MiB",
            {"server": course.line("server_mib"), "its helpers": course.line("others_mib")},
        ),
        chart.Panel("descriptors", {"": course.line("descriptors")}),
        chart.Panel("honest answers each second", {"": [(at, len(w) / 15) for at, w in middles]}),
        chart.Panel(
            "wait for the first byte, ms",
            {
                "median": [(at, statistics.median(w) * 1000) for at, w in middles],
                "99 of 100": [(at, _percentile(w, 0.99) * 1000) for at, w in middles],
            },
        ),
        chart.Panel("/healthz, ms", {"": course.line("health_ms")}),
    ]
    return chart.svg(panels, seen["marks"], seconds)


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def report(seen: dict[str, Any]) -> int:
    """Print the counts; return the number of failures."""
    course = seen["course"]
    waits = [wait for _, wait in seen["honest"]["first_token_s"]]
    tenth, half = max(len(course.rows) // 10, 1), course.rows[len(course.rows) // 2 :]
    for name in ("honest", "bad", "hostile", "idle"):
        print(name, json.dumps(seen[name]["counts"]), *seen[name]["wrong"][:10], sep="\n  ")
    print(f"killed: {len(course.kills)} processes")
    for name in ("server_mib", "others_mib", "descriptors", "threads", "shared_files"):
        parts = course.rows[tenth : 2 * tenth], course.rows[-tenth:]
        early, late = (statistics.median(row[name] for row in rows) for rows in parts)
        print(
            f"{name}: {seen['before'][name]:.0f} before, {early:.0f} early, {late:.0f} late, "
            f"{max(r[name] for r in course.rows):.0f} at most, {seen['after'][name]:.0f} after, "
            f"{_rise_a_minute(half, name):+.2f} a minute in the second half"
        )
    print(
        f"first byte: median {statistics.median(waits) * 1000:.0f} ms, "
        f"99 of 100 {_percentile(waits, 0.99) * 1000:.0f} ms, most {max(waits) * 1000:.0f} ms"
    )
    print(f"/healthz: most {max(row['health_ms'] for row in course.rows):.0f} ms")
    print("readiness at the end:", json.dumps(seen["ready"]))
    counts = seen["honest"]["counts"]
    num_wrong = sum(counts.get(n, 0) for n in ("mixed up", "refused", "broken"))
    return num_wrong + len(seen["bad"]["wrong"]) + len(seen["hostile"]["wrong"])


def _rise_a_minute(rows: list[dict[str, float]], name: str) -> float:
    """Return the Theil-Sen slope of a figure, which is robust to outliers."""
    far = len(rows) // 2
    pairs = zip(rows, rows[far:], strict=False)
    slopes = [(late[name] - early[name]) / (late["at_s"] - early["at_s"]) for early, late in pairs]
    return 60 * statistics.median(slopes)


def _base(address: server.Address) -> str:
    return address.removesuffix("/v1")


def main() -> int:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--bad", type=int, default=50_000)
    parser.add_argument("--hostile", type=int, default=4)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--set", action="append", default=[], help="a setting of the server")
    options = parser.parse_args()
    options.port = server.free_port()
    folder = Path(tempfile.mkdtemp())
    settings = [f"server.max_connections={options.idle + 1000}", *options.set]
    flags = [flag for setting in settings for flag in ("--set", setting)]
    try:
        with server.vlmkit("mock", options.port, folder / "log", "demo", *flags) as address:
            seen = soak(options, address, folder)
        if options.chart:
            options.chart.write_text(draw(seen, options.minutes * 60))
        num_wrong = report(seen)
        if soak_attacks.MARKER in (folder / "log").read_text(errors="replace"):
            print("the log contains data of a client")
            num_wrong += 1
        print("log of the server:", *(folder / "log").read_text().splitlines()[-20:], sep="\n  ")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
