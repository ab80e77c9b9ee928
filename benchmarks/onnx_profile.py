"""Profiles the operators of steps, with the profiler of ONNX Runtime.

It runs the loads of ``onnx`` in this process without HTTP, to explain slow columns there. Shares
are relative to the time from the requests to the end of the last answer, prompts included.
Profiling costs a few percent, so compare these times only with each other.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import answers
import contenders
import kernels
import peers
import quiet
import shapes
import tables

NUM_NAMED = 4  # operators with their own row
ANSWER_TOKENS = 16
COLUMNS = ("ms", "operators", "rest of the graph", "outside the graph")


def bench(options: peers.Options) -> None:
    """Profile each precision and print."""
    checkpoint = shapes.save(options.shape, options.models / f"random-{options.shape}")
    loads = [(answers.clients(n), n, answers.START_TOKENS, ANSWER_TOKENS) for n in answers.CLIENTS]
    loads += [(answers.prompt(length), 1, length, 1) for length in answers.PROMPTS]
    for precision in options.precisions:
        folder = peers.exported(checkpoint, precision)
        quiet.wait_until(options.idle_but)
        rows = [[name, *profile(folder, options, *load).row()] for name, *load in loads]
        print(f"\n{precision}, {options.shape}, {options.threads} threads, {kernels.name(folder)}")
        print(tables.markdown(["load", *COLUMNS], rows), flush=True)


@dataclass(frozen=True)
class Profile:
    """The time between requests and the ends of their answers.

    Attributes:
        wall_ms: the whole time.
        graph_ms: the time in graph runs.
        operator_ms: the time by operator.
    """

    wall_ms: float
    graph_ms: float
    operator_ms: Counter[str]

    def row(self) -> list[str]:
        """Return the cells of :data:`COLUMNS`."""
        named = self.operator_ms.most_common(NUM_NAMED)
        rest = self.graph_ms - sum(ms for _, ms in named)
        shares = [f"{name} {self._share(ms)}" for name, ms in named]
        outside = self._share(self.wall_ms - self.graph_ms)
        return [f"{self.wall_ms:.0f}", ", ".join(shares), self._share(rest), outside]

    def _share(self, ms: float) -> str:
        return f"{100 * ms / self.wall_ms:.0f} %"


def profile(
    folder: Path, options: peers.Options, clients: int, prompt_tokens: int, answer_tokens: int
) -> Profile:
    """Run simultaneous requests after a warm-up."""
    import vlmkit

    with tempfile.TemporaryDirectory() as scratch, _profiled(Path(scratch)):
        settings = {"num_threads": options.threads, "max_sequences": clients}
        with vlmkit.load(str(folder), engine=settings) as model:
            session = model.runner._engine._decoder._session
            _ask(model, clients, answers.START_TOKENS, 2)
            started_ns = time.time_ns()
            _ask(model, clients, prompt_tokens, answer_tokens)
            wall_ms = (time.time_ns() - started_ns) / 1e6
            first_us = (started_ns - session.get_profiling_start_time_ns()) / 1000
            events = json.loads(Path(session.end_profiling()).read_text())
    counted = [event for event in events if event.get("ts", 0) >= first_us]
    runs = (event["dur"] for event in counted if event["name"] == "model_run")
    operators: Counter[str] = Counter()
    for event in counted:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            operators[event["args"]["op_name"]] += event["dur"] / 1000
    return Profile(wall_ms, sum(runs) / 1000, operators)


def _ask(model: Any, clients: int, prompt_tokens: int, answer_tokens: int) -> None:
    requests = [
        model.request(
            contenders.new_prompt(prompt_tokens), max_tokens=answer_tokens, ignore_eos=True
        )
        for _ in range(clients)
    ]
    for stream in [model.submit(request) for request in requests]:
        stream.result()


@contextmanager
def _profiled(folder: Path) -> Iterator[None]:
    """Make every session that opens in this block write a profile into ``folder``."""
    from vlmkit_onnx.sessions import session

    plain = session._options

    def profiled(settings: Any) -> Any:
        options = plain(settings)
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        return options

    session._options = profiled
    try:
        yield
    finally:
        session._options = plain
