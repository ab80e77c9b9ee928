"""The CPU time that the runner ``subprocess`` adds to requests and tokens, on the mock.

The mock's engine takes no time, so what differs between the two runners is the way of requests and
chunks between the processes. CPU time is that of the process and, for ``subprocess``, of its child.

    python benchmarks/subprocess_cost.py
"""

import argparse
import asyncio
import json
import resource
import time
from pathlib import Path

import vlmkit
from vlmkit.running.subprocess_runner.runner import SubprocessRunner

TICKS = 100  # of /proc, in a second


def cpu_s(model: vlmkit.Model) -> float:
    """Return the CPU time of this process and of the child so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    if isinstance(model.runner, SubprocessRunner):
        fields = Path(f"/proc/{model.runner.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


async def read_answer(model: vlmkit.Model, num_tokens: int) -> None:
    """Read an answer of so many tokens."""
    prompt = json.dumps({"mock": {"text": "x", "tokens": num_tokens}})
    stream = await model.runner.asubmit(
        model.request(prompt, max_tokens=num_tokens), lambda _: None
    )
    while await stream.next_chunks():
        pass


async def run_load(model: vlmkit.Model, num_requests: int, num_tokens: int, at_once: int) -> None:
    """Send requests, with so many at once."""
    waiting = iter(range(num_requests))

    async def client() -> None:
        for _ in waiting:
            await read_answer(model, num_tokens)

    await asyncio.gather(*[client() for _ in range(at_once)])


def measured_s(model: vlmkit.Model, *load: int) -> float:
    """Return the CPU time of a load, after one that warms up."""
    asyncio.run(run_load(model, 4, *load[1:]))
    before = cpu_s(model)
    asyncio.run(run_load(model, *load))
    time.sleep(0.1)  # the last messages of the child
    return cpu_s(model) - before


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=20_000)
    args = parser.parse_args()
    own = {"use": "subprocess"}
    print("| at once | added CPU per request | added CPU per token |\n|---:|---:|---:|")
    with vlmkit.load("mock") as here, vlmkit.load("mock", runner=own) as there:
        for at_once in (1, 8, 64):
            short = [measured_s(each, args.requests, 1, at_once) for each in (here, there)]
            per_request_s = (short[1] - short[0]) / args.requests
            num_each = max(2, args.tokens // at_once)
            long = [measured_s(each, at_once, num_each, at_once) for each in (here, there)]
            added_s = long[1] - long[0] - at_once * per_request_s
            per_token_s = added_s / (at_once * num_each)
            print(f"| {at_once} | {per_request_s * 1e3:.2f} ms | {per_token_s * 1e6:.1f} us |")


if __name__ == "__main__":
    main()
