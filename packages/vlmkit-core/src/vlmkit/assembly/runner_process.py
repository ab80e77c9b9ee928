"""The child process of a runner: ``python -m vlmkit.assembly.runner_process``.

It builds the pipeline of a plan, sends its facts, and answers requests until its parent closes it
or is gone.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Iterable
from functools import partial
from itertools import accumulate

import msgspec

from vlmkit.assembly.load import build_plan
from vlmkit.errors import EngineError, VlmkitError
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.runner_tokens import token_table
from vlmkit.kit.traces import log_of_worker, trace_of
from vlmkit.running.remote_runner.messages import CODEC, Stage, Started
from vlmkit.running.remote_runner.request_server import BlockRecorder, StepRecorder
from vlmkit.running.subprocess_runner.child_process import WITH_BLOCKS, WITH_STEPS
from vlmkit.running.subprocess_runner.server import ChildServer
from vlmkit.wire.frames import read_frame, write_frame

log = logging.getLogger(__name__)


def main() -> None:
    """Build a pipeline and serve requests."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries must not mix with answers
    log_of_worker()
    requests = os.fdopen(0, "rb", buffering=0)
    steps = StepRecorder() if WITH_STEPS in sys.argv[1:] else None
    blocks = BlockRecorder() if WITH_BLOCKS in sys.argv[1:] else None
    observers: dict[str, Observer | None] = {"steps": steps, "blocks": blocks}
    try:
        plan = bytes(read_frame(requests).head)
        runner = build_plan(
            plan,
            on_stage=lambda name: write_frame(answers, CODEC.encode(Stage(name))),
            observers={name: partial(observers.get, name) for name in observers},
        )
        table = list(token_table(runner))
    except EOFError:
        return
    except (VlmkitError, msgspec.DecodeError) as error:
        write_frame(answers, CODEC.encode(_named(error)))
        return
    write_frame(answers, CODEC.encode(_started(runner, table)))
    try:
        asyncio.run(ChildServer(runner, requests, answers, steps, blocks).serve())
    except OSError as error:  # the parent is gone
        log.debug("the parent is gone:\n%s", trace_of(error))
    os._exit(0)  # threads of a hanging engine must not keep the process


def _named(error: Exception) -> VlmkitError:
    return error if isinstance(error, VlmkitError) else EngineError("the plan is malformed")


def _started(runner: Runner, table: Iterable[bytes]) -> Started:
    table = list(table)
    return Started(runner.facts, b"".join(table), tuple(accumulate(map(len, table))))


if __name__ == "__main__":
    main()
