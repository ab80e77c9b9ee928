"""Tells whether a version of vlmkit became slower or larger: an old one and a new one, in turn.

    python benchmarks/old_new.py --old PYTHON [--old-path PATH] --new PYTHON [--new-path PATH]

Each interpreter has vlmkit, vlmkit-mock, vlmkit-onnx and vlmkit-demo; ``--old-path`` and
``--new-path`` go before its packages, as in ``PYTHONPATH``. In each round both measure everything,
and who begins changes. A ratio is of two figures of one round, and over 1 where the new version is
better: more for what is counted in a second, less for times and memory. Asserts nothing.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import mock_streams
import server
import tables
from peers import spread
from same.servers import Source, only

Figures = dict[str, float]
"""Figures of one version in one round, by what they are of."""

STREAMS = {1: 2000, 64: 200, 256: 50}  # tokens of each, by the number of streams
CLIENTS = (1, 8)
NUM_TRIES = 3  # of everything short in a round, whose median is its figure
MIB = 2**20
LESS_IS_BETTER = ("s", "MiB")
RSS = "import vlmkit; print(open('/proc/self/statm').read().split()[1])"


@dataclass(frozen=True)
class Version:
    """One of the two.

    Attributes:
        name: old or new.
        source: its interpreter and its packages.
    """

    name: str
    source: Source


def main() -> None:
    """Measure both in turn and print the figures and their ratios."""
    options = _options()
    old = Version("old", Source(options.old, options.old_path))
    new = Version("new", Source(options.new, options.new_path))
    seen: dict[str, list[Figures]] = {"old": [], "new": []}
    began = time.monotonic()
    for number in range(options.rounds):
        for version in (old, new) if number % 2 == 0 else (new, old):
            figures = measured(version.source, options.model, options.tokens)
            seen[version.name].append(figures)
            line = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            print(f"round {number + 1}, {version.name}: {line}", flush=True)
    print(f"\n{table(seen['old'], seen['new'])}\n\n{time.monotonic() - began:.0f} s in all")


def measured(source: Source, model: str, tokens: int) -> Figures:
    """Return all figures of one version."""
    with tempfile.TemporaryDirectory() as folder, only(source.env):
        log = Path(folder) / "log"
        return {
            **_of_commands(source),
            **_of_mock(source, log),
            **_of_model(source, log, model, tokens),
        }


def _of_commands(source: Source) -> Figures:
    """Return how long the help takes, and what memory the package takes."""
    times = []
    for _ in range(NUM_TRIES):
        began = time.perf_counter()
        source.run("--help")
        times.append(time.perf_counter() - began)
    command = [source.python, "-c", RSS]
    pages = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {
        "vlmkit --help, s": statistics.median(times),
        "import vlmkit, MiB": int(pages) * 4096 / MIB,
    }


def _of_mock(source: Source, log: Path) -> Figures:
    """Return start, memory and events per second of a server of the mock."""
    port, began = server.free_port(), time.perf_counter()
    command = source.command("serve", "mock", "--set", f"server.port={port}")
    with server.running(command, port, "/readyz", log) as url:
        figures = {"vlmkit serve mock until ready, s": time.perf_counter() - began}
        time.sleep(1)
        figures["idle server of the mock, MiB"] = url.resident_bytes() / MIB
        asyncio.run(mock_streams.round_of(port, 4, 50))
        for count, tokens in STREAMS.items():
            rates = []
            for _ in range(NUM_TRIES):
                num_events, seconds = asyncio.run(mock_streams.round_of(port, count, tokens))
                rates.append(num_events / seconds)
            streams = "stream" if count == 1 else "streams"
            figures[f"mock, {count} {streams}, events/s"] = statistics.median(rates)
    return figures


def _of_model(source: Source, log: Path, model: str, tokens: int) -> Figures:
    """Return start and tokens per second of a server of a model on ONNX Runtime."""
    port, began = server.free_port(), time.perf_counter()
    command = source.command("serve", model, "--set", f"server.port={port}")
    with server.running(command, port, "/readyz", log) as url:
        name = Path(model).name
        figures = {f"vlmkit serve {name} until ready, s": time.perf_counter() - began}
        asked = {"tokens": tokens, "sampling": '{"temperature": 0, "ignore_eos": true}'}
        asked["prompt"] = "Tell me about # circles."
        server.load(url, name, clients=2, **asked)
        for count in CLIENTS:
            clients = "client" if count == 1 else "clients"
            rates = [
                server.load(url, name, clients=count, **asked)["tokens_per_s"]
                for _ in range(NUM_TRIES)
            ]
            figures[f"{name}, {count} {clients}, tokens/s"] = statistics.median(rates)
    return figures


def table(old: list[Figures], new: list[Figures]) -> str:
    """Return the figures of both and the ratios of each round."""
    rows = []
    for name in old[0]:
        before, after = [each[name] for each in old], [each[name] for each in new]
        is_rate = name.rpartition(", ")[2] not in LESS_IS_BETTER
        over, under = (after, before) if is_rate else (before, after)
        ratios = [a / b for a, b in zip(over, under, strict=True)]
        rows.append([name, spread(before), spread(after), spread(ratios)])
    return tables.markdown(["what", "old", "new", "new over old, more is better"], rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", default=sys.executable, help="an interpreter")
    parser.add_argument("--old-path", default="", help="goes before its packages")
    parser.add_argument("--new", default=sys.executable, help="an interpreter")
    parser.add_argument("--new-path", default="", help="goes before its packages")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="demo", help="a model for vlmkit-onnx; demo is w8a8")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer of the model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
