"""Compares the speed and memory of an old and a new version of vlmkit, in turn.

    python benchmarks/old_new.py --old PYTHON [--old-path PATH] --new PYTHON [--new-path PATH]

Each interpreter needs vlmkit, vlmkit-mock, vlmkit-onnx and vlmkit-demo; ``--old-path`` and
``--new-path`` precede its packages, as in ``PYTHONPATH``. Servers of both versions run at once.
Each is measured for about a second in turn, in alternating order. A ratio of two such figures is
over 1 if the new version is better: higher rates, shorter times, less memory. CPU time for each
event or token is that of the server; on a busy machine it is steadier than the rates. The program
asserts nothing.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mock_streams
import server
import tables
from peers import spread
from same.servers import Source, only

STREAMS = {1: 3000, 64: 300, 256: 75}  # tokens of each stream, by the number of streams
CLIENTS = (1, 8)
NUM_TRIES = 4  # of each short measurement in a round; even, so each version begins equally often
MIB = 2**20
LESS_IS_BETTER = ("s", "MiB", "CPU us/event", "CPU us/token")
RSS = "import vlmkit; print(open('/proc/self/statm').read().split()[1])"


@dataclass(frozen=True)
class Version:
    """One of the two versions.

    Attributes:
        name: old or new.
        source: its interpreter and packages.
    """

    name: str
    source: Source


Order = tuple[Version, Version]
Series = dict[str, dict[str, list[float]]]
"""Figures by their name, then by the name of the version."""


def main() -> None:
    """Measure both in turn and print the figures and their ratios."""
    options = _options()
    old = Version("old", Source(options.old, options.old_path))
    new = Version("new", Source(options.new, options.new_path))
    seen: Series = {}
    began = time.monotonic()
    for number in range(options.rounds):
        if options.idle_but is not None:
            import quiet

            quiet.wait_until(options.idle_but)
        order = (old, new) if number % 2 == 0 else (new, old)
        measure_commands(seen, order)
        measure_mock(seen, order)
        measure_model(seen, order, options.model, options.tokens)
        print(f"round {number + 1} ended after {time.monotonic() - began:.0f} s", flush=True)
    print(f"\n{table(seen)}")


def measure_commands(seen: Series, order: Order) -> None:
    """Record the time of the help and the memory of the package."""
    for version in _in_turn(order):
        began = time.perf_counter()
        version.source.run("--help")
        _note(seen, version, "vlmkit --help, s", time.perf_counter() - began)
    for version in order:
        command, env = [version.source.python, "-c", RSS], version.source.env
        pages = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
        _note(seen, version, "import vlmkit, MiB", int(pages) * 4096 / MIB)


def measure_mock(seen: Series, order: Order) -> None:
    """Record start time, memory and events per second of mock servers."""
    with _serving(seen, order, "mock") as urls:
        time.sleep(1)
        for version in order:
            url = urls[version.name]
            _note(seen, version, "idle server of the mock, MiB", url.resident_bytes() / MIB)
            asyncio.run(mock_streams.round_of(_port(url), 4, 50))
        for count, tokens in STREAMS.items():

            def streams(
                url: server.Address, count: int = count, tokens: int = tokens
            ) -> tuple[float, float]:
                return asyncio.run(mock_streams.round_of(_port(url), count, tokens))

            what = f"mock, {count} {'stream' if count == 1 else 'streams'}"
            _measure_rates(seen, order, urls, f"{what}, event", streams)


def measure_model(seen: Series, order: Order, model: str, tokens: int) -> None:
    """Record start time and tokens per second of servers with a model on ONNX Runtime."""
    name = Path(model).name
    asked = {"tokens": tokens, "sampling": '{"temperature": 0, "ignore_eos": true}'}
    asked["prompt"] = "Tell me about # circles."
    with _serving(seen, order, model) as urls:
        for url in urls.values():
            server.load(url, name, clients=2, **asked)
        for count in CLIENTS:

            def answers(url: server.Address, count: int = count) -> tuple[float, float]:
                told = server.load(url, name, clients=count, **asked)
                return told["num_events"], told["wall_s"]

            what = f"{name}, {count} {'client' if count == 1 else 'clients'}"
            _measure_rates(seen, order, urls, f"{what}, token", answers)


@contextlib.contextmanager
def _serving(seen: Series, order: Order, model: str) -> Iterator[dict[str, server.Address]]:
    """Serve a model with both versions, and record the times until they are ready."""
    what = f"vlmkit serve {Path(model).name} until ready, s"
    urls = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for version in order:
            port, began = server.free_port(), time.perf_counter()
            command = version.source.command("serve", model, "--set", f"server.port={port}")
            with only(version.source.env):
                running = server.running(command, port, "/readyz", folder / version.name)
                urls[version.name] = stack.enter_context(running)
            _note(seen, version, what, time.perf_counter() - began)
        yield urls


def _measure_rates(
    seen: Series,
    order: Order,
    urls: dict[str, server.Address],
    what: str,
    ask: Callable[[server.Address], tuple[float, float]],
) -> None:
    """Record a rate, and the CPU time of the server for each event.

    Args:
        seen: receives the figures.
        order: the order of the versions.
        urls: the addresses of their servers.
        what: the name of the figure, which ends with the counted unit.
        ask: sends requests to a server; returns the count and the seconds.
    """
    what, _, unit = what.rpartition(", ")
    for version in _in_turn(order):
        url = urls[version.name]
        before_s = url.cpu_s()
        amount, seconds = ask(url)
        _note(seen, version, f"{what}, {unit}s/s", amount / seconds)
        cost_us = (url.cpu_s() - before_s) / amount * 1e6
        _note(seen, version, f"{what}, CPU us/{unit}", cost_us)


def _in_turn(order: Order) -> Iterator[Version]:
    """Yield each version several times, in alternating order."""
    for number in range(NUM_TRIES):
        yield from order if number % 2 == 0 else order[::-1]


def _note(seen: Series, version: Version, what: str, value: float) -> None:
    seen.setdefault(what, {"old": [], "new": []})[version.name].append(value)


def _port(url: server.Address) -> int:
    return int(url.removesuffix("/v1").rpartition(":")[2])


def table(seen: Series) -> str:
    """Return the figures of both versions, and the ratios of adjacent measurements."""
    rows = []
    for what, figures in seen.items():
        before, after = figures["old"], figures["new"]
        is_rate = what.rpartition(", ")[2] not in LESS_IS_BETTER
        over, under = (after, before) if is_rate else (before, after)
        pairs = zip(over, under, strict=True)
        ratios = [a / b if b else float("nan") for a, b in pairs]
        rows.append([what, spread(before), spread(after), spread(ratios)])
    return tables.markdown(["what", "old", "new", "new over old, more is better"], rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", default=sys.executable, help="an interpreter")
    parser.add_argument("--old-path", default="", help="precedes its packages")
    parser.add_argument("--new", default=sys.executable, help="an interpreter")
    parser.add_argument("--new-path", default="", help="precedes its packages")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle-but", type=float, help="wait until fewer cores are busy")
    parser.add_argument("--model", default="demo", help="a model for vlmkit-onnx; demo is w8a8")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    return parser.parse_args()


if __name__ == "__main__":
    main()
