"""The subject of the runner contract: a runner, its failure, and requests. No tests."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.types.completion import Chunk, Completion
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams


class RunnerSubject:
    """What a runner's author provides. No tests.

    Attributes:
        timeout_s: how long tests wait for what a runner must do eventually. After three times as
            long, a test closes its runner, so that no read waits forever.
        too_many: long requests that overfill the queue of a runner of :meth:`make`; 0 skips the
            test of a full queue.
    """

    timeout_s = 20.0
    too_many = 0

    def make(self) -> Runner:
        """Return a new runner, which is idle and ready."""
        raise NotImplementedError

    def fail(self, runner: Runner) -> None:
        """Make a runner fail permanently, such as by crashing all its engines."""
        raise NotImplementedError

    def request(self, num_tokens: int = 6, **params: object) -> Request:
        """Return a request for a number of answer tokens; override it if needed."""
        asked = SamplingParams().replaced(
            {"max_tokens": num_tokens, "ignore_eos": True, "seed": 7} | params
        )
        return Request(messages=[Message.of("user", "Tell me a story.")], params=asked)

    @contextmanager
    def _runner(self) -> Iterator[Runner]:
        was_late = threading.Event()
        with closing(self.make()) as runner:

            def end() -> None:
                was_late.set()
                runner.close()

            ending = threading.Timer(3 * self.timeout_s, end)
            ending.daemon = True
            ending.start()
            try:
                yield runner
            finally:
                ending.cancel()
        assert not was_late.is_set(), "the runner had to be closed, since calls did not return"

    def _endless(self, runner: Runner, id: str = "") -> AnswerStream:  # noqa: A002 - of requests
        """Start an answer that cannot end unread, because the loop holds it long before."""
        return runner.submit(replace(self._endless_request(runner), id=id))

    def _endless_request(self, runner: Runner) -> Request:
        """Return a request whose answer cannot end unread."""
        num_tokens = runner.facts.limits.max_sequence_tokens // 2
        if num_tokens <= 2 * runner.facts.bounds.max_unread_tokens:
            pytest.skip("this model's context ends before a reader is behind")
        return self.request(num_tokens)

    def _num_open(self, runner: Runner) -> int:
        stats = runner.stats()
        return stats.num_running + stats.num_waiting

    def _ordinary_ids(self, runner: Runner) -> list[int]:
        """Return different tokens of an answer that do not end one."""
        sampled = runner.submit(self.request(16)).result().choices[0].token_ids
        ids = [i for i in dict.fromkeys(sampled) if i not in runner.facts.eos_ids]
        if len(ids) < 2:
            pytest.skip("its answers have one token alone: override request()")
        return ids

    def _eventually(self, is_true: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self.timeout_s
        while not is_true():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


def token_ids_of(done: Completion) -> list[list[int]]:
    """Return the token ids of each choice."""
    return [choice.token_ids for choice in done.choices]


def gathered(chunks: Iterable[Chunk]) -> list[list[int]]:
    """Return the token ids of each of two choices, gathered from chunks."""
    ids: list[list[int]] = [[], []]
    for chunk in chunks:
        ids[chunk.index] += [sample.token_id for sample in chunk.samples]
    return ids
