"""A second runner: several replicas behind one name, using only the runner interface."""

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from vlmkit.errors import EngineError
from vlmkit.interfaces.runner import AnswerStream, Runner, RunnerFacts
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats


class Replicas:
    """Sends each request to the runner that has least to do; one that failed is left out."""

    def __init__(self, runners: Sequence[Runner], name: str = "replicas") -> None:
        self.runners = runners
        self.facts: RunnerFacts = dataclasses.replace(runners[0].facts, name=name)

    def submit(self, request: Request) -> AnswerStream:
        return self._idlest().submit(request)

    async def asubmit(self, request: Request) -> AnswerStream:
        return await self._idlest().asubmit(request)

    async def atokenize(self, request: Request) -> PromptTokens:
        return await self._idlest().atokenize(request)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self.runners[0].detokenize(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return self.runners[0].token_bytes(token_id)

    @property
    def is_ready(self) -> bool:
        return any(runner.is_ready for runner in self.runners)

    @property
    def is_full(self) -> bool:
        return all(runner.is_full for runner in self.runners if runner.is_ready)

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Report only the failure of the last replica; until then, another one answers."""
        failures: list[BaseException] = []
        lock = threading.Lock()

        def note(failure: BaseException) -> None:
            with lock:
                failures.append(failure)
                is_last = len(failures) == len(self.runners)
            if is_last:
                tell(failure)

        for runner in self.runners:
            runner.on_failure(note)

    def stats(self) -> RunnerStats:
        each = [runner.stats() for runner in self.runners]
        counters: Counter[str] = Counter()
        for stats in each:
            counters.update(stats.counters)
        return RunnerStats(
            sum(stats.num_running for stats in each),
            sum(stats.num_waiting for stats in each),
            sum(stats.num_feature_hits for stats in each),
            sum(stats.num_feature_misses for stats in each),
            dict(counters),
            {},
        )

    def drain(self, timeout_s: float) -> bool:
        with ThreadPoolExecutor() as at_once:
            drained = list(at_once.map(lambda runner: runner.drain(timeout_s), self.runners))
        return all(drained)

    def close(self) -> None:
        for runner in self.runners:
            runner.close()

    def _idlest(self) -> Runner:
        ready = [runner for runner in self.runners if runner.is_ready]
        if not ready:
            raise EngineError("no replica is left", hint="ask another server")
        return min(ready, key=_load)


def _load(runner: Runner) -> tuple[bool, int]:
    stats = runner.stats()
    return runner.is_full, stats.num_running + stats.num_waiting
