"""Measures the waits of readers under random arrivals, on random weights of a real shape.

Requests arrive at random times; a few have long prompts. Only servers take part, because a library
without a server gets no requests while it computes.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

import arrivals
import contenders
import numpy as np
import peers
import quiet
import server
import shapes
import tables

DURATION_S = 30.0
SHORT, LONG, GAP = "first token of a short question", "of a long one", "gap between two tokens"
COLUMNS = (
    *(f"{name}, {share}" for name in (SHORT, LONG, GAP) for share in ("median", "99th")),
    f"{GAP}, longest",
)

Figures = dict[str, float]
"""Milliseconds by column."""


def bench(options: peers.Options) -> None:
    """Measure each contender in turn and print the tables."""
    checkpoint = shapes.save(options.shape, options.models / f"random-{options.shape}")
    all_contenders = contenders.contenders(checkpoint, options)
    servers = [each for each in all_contenders if isinstance(each, contenders.Server)]
    coming = list(arrivals.schedule(options.arrivals_per_s, DURATION_S))
    seen: dict[str, list[Figures]] = {each.name: [] for each in servers}
    for number in range(options.rounds):
        for each in servers:
            quiet.wait_until(options.idle_but)
            figures = contenders.figures_or_none(each.name, partial(_measure, each, coming))
            seen[each.name].append(figures)
            line = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            print(f"round {number + 1}, {each.name}: {line}", flush=True)
    num_long = sum(arrival.is_long for arrival in coming)
    print(
        f"\nms, {options.shape}, {options.threads} threads: {len(coming)} questions in "
        f"{DURATION_S:.0f} s, {num_long} of {arrivals.LONG_PROMPT} tokens"
    )
    rows = [
        [name, *(peers.spread([f[key] for f in rounds if key in f]) for key in COLUMNS)]
        for name, rounds in seen.items()
    ]
    print(tables.markdown(["engine", *COLUMNS], rows))


def _measure(contender: contenders.Server, coming: list[arrivals.Arrival]) -> Figures:
    with contender.start() as (url, model):
        ask = contenders.over_http(url, model)
        ask(8, 64, 2)
        ask(1, arrivals.LONG_PROMPT, 2)
        waits_s = _waits_s(url, model, coming)
    ms = [[1000 * wait for wait in waits] for waits in waits_s]
    first = {
        is_long: [w[0] for w, a in zip(ms, coming, strict=True) if a.is_long == is_long]
        for is_long in (False, True)
    }
    gaps = [gap for waits in ms for gap in waits[1:]]
    spreads = [_spread(values) for values in (first[False], first[True], gaps)]
    return dict(zip(COLUMNS, [*np.ravel(spreads), max(gaps)], strict=True))


def _spread(values: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    return float(np.percentile(values, 50)), float(np.percentile(values, 99))


def _waits_s(url: str, model: str, coming: list[arrivals.Arrival]) -> list[list[float]]:
    """Send all requests at their times; return the waits of each answer."""
    plan = [
        {
            "prompt": contenders.new_prompt(arrival.prompt_tokens),
            "tokens": arrival.answer_tokens,
            "at_s": arrival.at_s,
        }
        for arrival in coming
    ]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "plan.json"
        file.write_text(json.dumps(plan))
        waits_s: list[list[float]] = server.load(url, model, plan=file)["waits_s"]
    return waits_s
