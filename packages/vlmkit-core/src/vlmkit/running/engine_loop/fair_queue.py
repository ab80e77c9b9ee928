"""The fair queue: whose sequences the scheduler gets next.

A burst of one account never delays the answers of another. Each account has a virtual token
counter: the prompt tokens that the scheduler got, plus twice its answers' tokens, which take
longer. The account with the lowest counter is next, as in deficit round robin (Shreedhar and
Varghese, 1996) with costs that are known afterwards: Sheng et al., "Fairness in Serving Large
Language Models" (OSDI 2024). An account that becomes active starts at the lowest counter of the
active ones, so that idle time earns no credit. Within an account, priority decides, then arrival.

The scheduler gets little more than it can start. It learns of accounts by priorities alone: if an
account has used no more than any other that runs, its next sequence becomes more urgent than
theirs. It is prefilled first and may preempt them; background requests never do.

Everything here runs in the loop's thread, unless a method says otherwise.
"""

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.engine_loop.job import Job
from vlmkit.types.request import BACKGROUND

OUTPUT_WEIGHT = 2  # of an answer token relative to a prompt token, as in Sheng et al.
WINDOW_TOKENS = 4096  # of an account's prompts that the scheduler has and has not started
ALONE_WINDOW_TOKENS = 32_768  # if no other account is active
PRIORITY_LEVEL = 1 << 32  # more than priorities differ by
MAX_IDLE_ACCOUNTS = 1024  # whose counters are remembered


class _Entered(NamedTuple):
    """The cost and priority of a sequence when the scheduler got it."""

    cost: int
    priority: int


class _Account:
    """The sequences of one active account.

    Attributes:
        used: the virtual token counter, without the tokens of running answers.
        heap: the waiting sequences by priority and arrival, and some that have left.
        waiting: the waiting sequences, with their jobs and costs.
        scheduled: the sequences that the scheduler has, with their costs.
        entered: those of them that it may not have started.
        num_entered_tokens: the sum of the costs in ``entered``.
    """

    __slots__ = ("entered", "heap", "num_entered_tokens", "scheduled", "used", "waiting")

    def __init__(self, used: int) -> None:
        self.used = used
        self.heap: list[tuple[int, int, Sequence]] = []
        self.waiting: dict[Sequence, tuple[Job, int]] = {}
        self.scheduled: dict[Sequence, int] = {}
        self.entered: dict[Sequence, _Entered] = {}
        self.num_entered_tokens = 0

    @property
    def used_now(self) -> int:
        """The counter with the tokens of running answers."""
        return self.used + OUTPUT_WEIGHT * sum(len(each.output_ids) for each in self.scheduled)

    @property
    def num_waiting(self) -> int:
        """Sequences that have not started."""
        entered = list(self.entered)  # a copy, since other threads read it
        return len(self.waiting) + sum(each.num_cached_tokens is None for each in entered)

    def head(self) -> Sequence:
        """Return the next waiting sequence."""
        while (sequence := self.heap[0][2]) not in self.waiting:
            heapq.heappop(self.heap)
        return sequence

    def drop_started(self) -> None:
        """Remove the sequences that have started from ``entered``."""
        for sequence in [s for s in self.entered if s.num_cached_tokens is not None]:
            self.num_entered_tokens -= self.entered.pop(sequence).cost

    def may_schedule(self, max_tokens: int) -> bool:
        """Return whether the scheduler may get the next sequence.

        It may within the window, and beyond it if the sequence is more urgent than all of them.
        """
        if self.num_entered_tokens < max_tokens:
            return True
        priority = self.head().priority
        return all(priority < each.priority for each in self.entered.values())


class FairQueue:
    """Sequences that wait until their account is next."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._idle: dict[str, int] = {}  # the counters of accounts without sequences
        self._numbers = itertools.count()
        self._priority_level = 0
        self.num_waiting = 0

    def num_waiting_of(self, account: str) -> int:
        """Return how many sequences of an account have not started; may be called in any thread."""
        found = self._accounts.get(account)
        return 0 if found is None else found.num_waiting

    @property
    def num_accounts(self) -> int:
        """Active accounts; may be read in any thread."""
        return len(self._accounts)

    def add(self, jobs: list[Job]) -> None:
        """Add sequences, which wait until their account is next."""
        last: Prompt | None = None
        for job in jobs:
            name, sequence = job.channel.account, job.sequence
            account = self._accounts.get(name)
            if account is None:
                used = max(self._idle.pop(name, 0), self._least_used())
                account = self._accounts[name] = _Account(used)
            is_sibling, last = last is sequence.prompt, sequence.prompt
            cost = 1 if is_sibling else len(last.token_ids)  # a sibling's prompt is cached
            account.waiting[sequence] = job, cost
            heapq.heappush(account.heap, (sequence.priority, next(self._numbers), sequence))
        self.num_waiting += len(jobs)

    def next_jobs(self, num_waiting: int) -> Iterator[Job]:
        """Yield the sequences that are next; the caller adds each to the scheduler at once.

        Args:
            num_waiting: how many sequences wait in the scheduler.
        """
        if not self.num_waiting:
            return
        is_shared = len(self._accounts) > 1
        used: dict[str, int] = {}
        for name, account in self._accounts.items():
            account.drop_started()
            used[name] = account.used_now if is_shared else 0
        is_idle = not num_waiting
        while self.num_waiting:
            found = self._next(used)
            if found is None:
                if not is_idle:  # an idle scheduler must have a sequence to start
                    return
                found = next(name for name, each in self._accounts.items() if each.waiting)
            is_idle = False
            yield self._enter(found, used)

    def remove(self, job: Job) -> bool:
        """Remove a sequence that ended; return whether the scheduler has it."""
        name, sequence = job.channel.account, job.sequence
        if (account := self._accounts.get(name)) is None:
            return False
        was_scheduled = account.scheduled.pop(sequence, None) is not None
        if was_scheduled:
            if (entered := account.entered.pop(sequence, None)) is not None:
                account.num_entered_tokens -= entered.cost
            account.used += OUTPUT_WEIGHT * len(sequence.output_ids)
        elif account.waiting.pop(sequence, None) is not None:
            self.num_waiting -= 1
            if len(account.heap) > 64 and len(account.heap) > 2 * len(account.waiting):
                account.heap = [entry for entry in account.heap if entry[2] in account.waiting]
                heapq.heapify(account.heap)
        if not account.waiting and not account.scheduled:
            self._leave(name)
        return was_scheduled

    def has_entered(self, job: Job) -> bool:
        """Return whether the scheduler has a sequence."""
        found = self._accounts.get(job.channel.account)
        return found is not None and job.sequence in found.scheduled

    def _least_used(self) -> int:
        """Return the lowest counter of active accounts, without unstarted prompts."""
        for account in self._accounts.values():
            account.drop_started()
        used = (each.used_now - each.num_entered_tokens for each in self._accounts.values())
        return max(0, min(used, default=0))

    def _leave(self, name: str) -> None:
        """Remove an account; remember its counter while others are active."""
        used = self._accounts.pop(name).used
        if not self._accounts:
            self._idle.clear()
            self._priority_level = 0
            return
        self._idle[name] = used
        if len(self._idle) > MAX_IDLE_ACCOUNTS:
            least = self._least_used()
            self._idle = {n: u for n, u in self._idle.items() if u > least}
            while len(self._idle) > MAX_IDLE_ACCOUNTS:
                del self._idle[min(self._idle, key=self._idle.__getitem__)]

    def _next(self, used: dict[str, int]) -> str | None:
        """Return the next account; None if the scheduler has enough sequences of each."""
        max_tokens = ALONE_WINDOW_TOKENS if len(self._accounts) == 1 else WINDOW_TOKENS
        found: str | None = None
        best: tuple[bool, int] | None = None
        for name, account in self._accounts.items():
            if not account.waiting:
                continue
            rank = account.head().priority >= BACKGROUND, used[name]
            if (best is None or rank < best) and account.may_schedule(max_tokens):
                found, best = name, rank
        return found

    def _enter(self, name: str, used: dict[str, int]) -> Job:
        """Move the next sequence of an account to the scheduled ones; return its job."""
        account = self._accounts[name]
        sequence = account.head()
        heapq.heappop(account.heap)
        job, cost = account.waiting.pop(sequence)
        self.num_waiting -= 1
        others = [each for other, each in used.items() if other != name and self._runs(other)]
        is_foreground = sequence.priority < BACKGROUND
        if is_foreground and others and used[name] <= min(others):
            self._priority_level -= 1
            sequence.priority += self._priority_level * PRIORITY_LEVEL
        account.scheduled[sequence] = cost
        account.entered[sequence] = _Entered(cost, sequence.priority)
        account.num_entered_tokens += cost
        account.used += cost
        used[name] += cost
        return job

    def _runs(self, name: str) -> bool:
        account = self._accounts.get(name)
        return account is not None and bool(account.scheduled)
