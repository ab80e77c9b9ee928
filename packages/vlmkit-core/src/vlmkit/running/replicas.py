"""Several runners of one model behind one: requests go to the one with the least work. Public.

It uses only the interface of runners, so the replicas may be pipelines or anything else.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from vlmkit.errors import EngineError
from vlmkit.interfaces.runner import Admit, AnswerStream, Runner, RunnerFacts
from vlmkit.kit.runner_state import is_restarting
from vlmkit.kit.runner_tokens import adetokenize, token_table
from vlmkit.types.demand import Demand
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats

log = logging.getLogger(__name__)

N = TypeVar("N", int, float)
HINT = "restart the server, or load the model again"


class Replicas:
    """Sends each request to the replica with the fewest open requests.

    A replica that fails gets no further requests; a request that it did not accept goes to another
    one. The runner fails when its last replica fails. It closes its replicas.

    Args:
        runners: one or more runners of the same model.

    Raises:
        EngineError: the replicas differ in more than the size of their caches.
    """

    def __init__(self, runners: Seq[Runner]) -> None:
        self.runners = tuple(runners)
        self.facts = _common_facts([runner.facts for runner in self.runners])
        self._lock = threading.Lock()
        self._num_starting: Counter[int] = Counter()  # requests that no statistics count yet
        self._is_closed = False
        for place, runner in enumerate(self.runners):
            runner.on_failure(partial(self._report, place))

    def submit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request on the replica with the least work.

        Args:
            request: the request.
            admit: called once, also if a second replica gets the request.

        Raises:
            RequestError: the request is invalid or too long, or the queue is full.
            EngineError: no replica can answer.
        """
        admit = admitted_once(admit)
        while True:
            with self._chosen() as runner:
                try:
                    return runner.submit(request, admit)
                except EngineError:
                    if runner.is_ready or self._is_closed:
                        raise

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request on the replica with the least work; return when it is accepted.

        Args:
            request: the request.
            admit: called once, also if a second replica gets the request.

        Raises:
            RequestError: the request is invalid or too long, or the queue is full.
            EngineError: no replica can answer.
        """
        admit = admitted_once(admit)
        while True:
            with self._chosen() as runner:
                try:
                    return await runner.asubmit(request, admit)
                except EngineError:
                    if runner.is_ready or self._is_closed:
                        raise

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return the tokens of a request's prompt.

        Raises:
            RequestError: the request is invalid.
            EngineError: no replica can answer.
        """
        with self._chosen() as runner:
            return await runner.atokenize(request)

    def detokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens.

        Raises:
            RequestError: a token is not in the vocabulary.
        """
        return self.runners[0].detokenize(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may be part of a character."""
        return self.runners[0].token_bytes(token_id)

    def token_table(self) -> Seq[bytes]:
        """Return the bytes of every token."""
        return token_table(self.runners[0])

    async def adetokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens without blocking the event loop.

        Raises:
            RequestError: a token is not in the vocabulary.
            EngineError: no replica can answer.
        """
        with self._chosen() as runner:
            return await adetokenize(runner, token_ids)

    @property
    def is_ready(self) -> bool:
        """Whether any replica can answer requests."""
        return any(runner.is_ready for runner in self.runners)

    @property
    def is_restarting(self) -> bool:
        """Whether no replica can answer, and one will by itself."""
        return not self.is_ready and any(map(is_restarting, self.runners))

    @property
    def is_full(self) -> bool:
        """Whether the queues of all replicas that can answer are full."""
        ready = [runner for runner in self.runners if runner.is_ready]
        return bool(ready) and all(runner.is_full for runner in ready)

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Call a function with the error of the last replica when all have failed."""
        num_left = len(self.runners)
        lock = threading.Lock()

        def note(failure: BaseException) -> None:
            nonlocal num_left
            with lock:
                num_left -= 1
                is_last = num_left == 0
            if is_last:
                tell(failure)

        for runner in self.runners:
            runner.on_failure(note)

    def stats(self) -> RunnerStats:
        """Return the sums over all replicas, also of those that failed."""
        return sum_of_stats([runner.stats() for runner in self.runners])

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the running ones; return whether all ended in time."""
        with ThreadPoolExecutor(len(self.runners)) as threads:
            return all(list(threads.map(lambda runner: runner.drain(timeout_s), self.runners)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all replicas; a second call does nothing.

        Raises:
            EngineFailed: the engine of a replica hangs; the others are closed.
        """
        self._is_closed = True
        with ExitStack() as closing:
            for runner in self.runners:
                closing.callback(runner.close)

    @contextmanager
    def _chosen(self) -> Iterator[Runner]:
        """Count a request as started by the replica with the least work, which is returned."""
        with self._lock:
            place = self._least_loaded()
            self._num_starting[place] += 1
        try:
            yield self.runners[place]
        finally:
            with self._lock:
                self._num_starting[place] -= 1

    def _least_loaded(self) -> int:
        ready = self.ready()
        if not ready:
            raise self.none_ready()
        return min(ready, key=self._load)

    def ready(self) -> list[int]:
        """Return the places of the replicas that can answer."""
        return [place for place, runner in enumerate(self.runners) if runner.is_ready]

    def none_ready(self) -> EngineError:
        """Return the error of a request while no replica can answer."""
        state = "closed" if self._is_closed else "failed"
        return EngineError(f"all replicas of model {self.facts.name!r} have {state}", hint=HINT)

    def _load(self, place: int) -> tuple[bool, int]:
        runner = self.runners[place]
        stats = runner.stats()
        num_open = stats.num_running + stats.num_waiting + self._num_starting[place]
        return runner.is_full, num_open

    def _report(self, place: int, _: BaseException) -> None:
        num_left = sum(runner.is_ready for runner in self.runners)
        name, num = self.facts.name, len(self.runners)
        log.error("model %r: replica %d of %d failed, %d left", name, place + 1, num, num_left)


def sum_of_stats(each: Seq[RunnerStats]) -> RunnerStats:
    """Return the sums of the statistics of several runners."""
    free = [stats.num_free_tokens for stats in each if stats.num_free_tokens is not None]
    names = dict.fromkeys(name for stats in each for name in stats.observed)
    return RunnerStats(
        sum(stats.num_running for stats in each),
        sum(stats.num_waiting for stats in each),
        sum(stats.num_feature_hits for stats in each),
        sum(stats.num_feature_misses for stats in each),
        _sum(stats.counters for stats in each),
        {name: _sum(stats.observed.get(name, {}) for stats in each) for name in names},
        sum(free) if free else None,
    )


def admitted_once(admit: Admit | None) -> Admit | None:
    """Return an admission that asks the caller once, whichever replica reports the demand."""
    if admit is None:
        return None
    is_admitted = False

    def decide(demand: Demand) -> None:
        nonlocal is_admitted
        if not is_admitted:
            admit(demand)
            is_admitted = True

    return decide


def _common_facts(facts: Seq[RunnerFacts]) -> RunnerFacts:
    """Return the facts of all replicas together.

    Their caches may differ in size, where an engine takes the memory that is left.

    Raises:
        EngineError: they differ in anything else.
    """
    each = [one.limits for one in facts]
    limits = replace(
        facts[0].limits,
        max_sequence_tokens=min(one.max_sequence_tokens for one in each),
        max_chunk_tokens=min(one.max_chunk_tokens for one in each),
        max_sequences=sum(one.max_sequences for one in each),
        capacity_tokens=sum(one.capacity_tokens for one in each),
    )
    if any(_without_sizes(one) != _without_sizes(facts[0]) for one in facts):
        raise EngineError("the replicas of a model differ in more than the size of their caches")
    return replace(facts[0], limits=limits)


def _without_sizes(facts: RunnerFacts) -> RunnerFacts:
    none = replace(
        facts.limits, max_sequence_tokens=0, max_chunk_tokens=0, max_sequences=0, capacity_tokens=0
    )
    return replace(facts, limits=none)


def _sum(numbers: Iterable[Mapping[str, N]]) -> dict[str, N]:
    total: dict[str, N] = {}
    for each in numbers:
        for name, number in each.items():
            total[name] = total[name] + number if name in total else number
    return total
