"""The mock in worker processes, for tests of the server in front of them."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import msgspec

import vlmkit
from vlmkit.interfaces.runner import Runner
from workers import WorkerProcess


def mocks_in_workers(num_workers: int, sections: Mapping[str, Mapping[str, Any]]) -> Runner:
    """Return a runner of workers with these settings, which end when it is closed.

    A lost worker counts as a failed engine at once.
    """
    assignments = [f"--set={each}" for each in _assignments(sections)]
    with ExitStack() as stack, ThreadPoolExecutor(num_workers) as threads:
        started = list(threads.map(lambda _: WorkerProcess(*assignments), range(num_workers)))
        for process in started:
            stack.callback(process.close)
        reference = f"grpc://{','.join(process.address for process in started)}/mock"
        runner = {"use": "grpc", "give_up_s": 0.0}
        fleet: Any = vlmkit.load(reference, runner=runner, pipeline=sections["pipeline"]).runner
        workers, close = stack.pop_all(), fleet.close

    def close_all() -> None:
        with workers:
            close()

    fleet.close = close_all
    return fleet


def _assignments(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _assignments(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}={_toml(msgspec.to_builtins(value))}"


def _toml(value: Any) -> str:
    """Return a value in TOML, on one line and without what is None."""
    if isinstance(value, Mapping):
        pairs = [f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items() if v is not None]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
