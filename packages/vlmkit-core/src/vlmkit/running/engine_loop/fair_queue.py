"""Whose sequences the scheduler gets next, so that no account's burst delays another's answers.

Each account has used so many tokens: those of prompts that were handed over, and twice those of its
answers, which take longer. Who has used least is next, as by deficit round robin (Shreedhar and
Varghese, 1996) with costs that are known afterwards: the virtual token counters of Sheng et al.,
"Fairness in Serving Large Language Models" (OSDI 2024). An account that comes anew starts where the
least of those under way is, so that nothing is saved up. Inside an account it is by priority, then
first come first served.

A scheduler is handed little more than it can begin, and hears of accounts by priorities alone: a
sequence whose account has used no more than any other that runs is more urgent than theirs, so
that it is read before their prompts are, and gets a place although they have all; but not so one
that nobody waits for. Knows no engine and no clock; is used in the loop's thread, but for what is
said to be counted elsewhere.
"""

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.engine_loop.job import Job
from vlmkit.types.request import BACKGROUND

OUTPUT_WEIGHT = 2  # of a token of an answer beside one of a prompt, as Sheng et al. have it
WINDOW_TOKENS = 4096  # of prompts that the scheduler has and has not begun, of one account
ALONE_WINDOW_TOKENS = 32_768  # where there is no other
LEVEL = 1 << 32  # more than priorities differ by
MOST_PAST = 1024  # accounts that have nothing under way and are remembered


class _Entered(NamedTuple):
    """What a sequence was when the scheduler got it, which may order by priorities of its own."""

    cost: int
    priority: int


class _Account:
    """What one account has under way.

    Attributes:
        used: tokens, but for those of answers that are not over.
        heap: those that wait here by priority and arrival, and some that are gone.
        waiting: those that wait here.
        inside: those that the scheduler has, with what they counted for.
        entered: those of them that it has perhaps not begun, as they were.
        num_entered_tokens: what these counted for.
    """

    __slots__ = ("entered", "heap", "inside", "num_entered_tokens", "used", "waiting")

    def __init__(self, used: int) -> None:
        self.used = used
        self.heap: list[tuple[int, int, Sequence]] = []
        self.waiting: dict[Sequence, tuple[Job, int]] = {}
        self.inside: dict[Sequence, int] = {}
        self.entered: dict[Sequence, _Entered] = {}
        self.num_entered_tokens = 0

    @property
    def used_now(self) -> int:
        """Tokens used, those of running answers included."""
        return self.used + OUTPUT_WEIGHT * sum(len(each.output_ids) for each in self.inside)

    @property
    def num_waiting(self) -> int:
        """How many have not begun."""
        entered = list(self.entered)  # asked for in other threads, too
        return len(self.waiting) + sum(each.num_cached_tokens is None for each in entered)

    def head(self) -> Sequence:
        """Return who is next of those that wait here."""
        while (sequence := self.heap[0][2]) not in self.waiting:
            heapq.heappop(self.heap)
        return sequence

    def note_begun(self) -> None:
        """Forget of those that entered who has begun."""
        for sequence in [s for s in self.entered if s.num_cached_tokens is not None]:
            self.num_entered_tokens -= self.entered.pop(sequence).cost

    def has_turn(self, most_tokens: int) -> bool:
        """Tell whether the scheduler may have the next one, or one more urgent than all it has."""
        if self.num_entered_tokens < most_tokens:
            return True
        priority = self.head().priority
        return all(priority < each.priority for each in self.entered.values())


class FairQueue:
    """Keeps sequences until it is their account's turn."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._past: dict[str, int] = {}  # what those used that have nothing under way
        self._numbers = itertools.count()
        self._level = 0
        self.num_waiting = 0

    def num_waiting_of(self, account: str) -> int:
        """Return how many of an account's sequences have not begun; may be asked in any thread."""
        found = self._accounts.get(account)
        return 0 if found is None else found.num_waiting

    @property
    def num_accounts(self) -> int:
        """How many have something under way; may be asked in any thread."""
        return len(self._accounts)

    def add(self, jobs: list[Job]) -> None:
        """Keep sequences until their turns come."""
        last: Prompt | None = None
        for job in jobs:
            name, sequence = job.channel.account, job.sequence
            account = self._accounts.get(name)
            if account is None:
                used = max(self._past.pop(name, 0), self._least_used())
                account = self._accounts[name] = _Account(used)
            is_sibling, last = last is sequence.prompt, sequence.prompt
            cost = 1 if is_sibling else len(last.token_ids)  # a sibling finds the rest in the cache
            account.waiting[sequence] = job, cost
            heapq.heappush(account.heap, (sequence.priority, next(self._numbers), sequence))
        self.num_waiting += len(jobs)

    def handed_over(self, num_waiting: int) -> Iterator[Job]:
        """Yield those whose turn it is, each to be handed to the scheduler at once.

        Args:
            num_waiting: how many wait there already.
        """
        if not self.num_waiting:
            return
        is_shared = len(self._accounts) > 1
        used: dict[str, int] = {}
        for name, account in self._accounts.items():
            account.note_begun()
            used[name] = account.used_now if is_shared else 0
        is_idle = not num_waiting
        while self.num_waiting:
            found = self._next(used)
            if found is None:
                if not is_idle:  # a scheduler has to have something that it could begin
                    return
                found = next(name for name, each in self._accounts.items() if each.waiting)
            is_idle = False
            yield self._enter(found, used)

    def remove(self, job: Job) -> bool:
        """Forget a sequence that ended; tell whether the scheduler has it."""
        name, sequence = job.channel.account, job.sequence
        if (account := self._accounts.get(name)) is None:
            return False
        is_inside = account.inside.pop(sequence, None) is not None
        if is_inside:
            if (entered := account.entered.pop(sequence, None)) is not None:
                account.num_entered_tokens -= entered.cost
            account.used += OUTPUT_WEIGHT * len(sequence.output_ids)
        elif account.waiting.pop(sequence, None) is not None:
            self.num_waiting -= 1
            if len(account.heap) > 64 and len(account.heap) > 2 * len(account.waiting):
                account.heap = [entry for entry in account.heap if entry[2] in account.waiting]
                heapq.heapify(account.heap)
        if not account.waiting and not account.inside:
            self._leave(name)
        return is_inside

    def has_entered(self, job: Job) -> bool:
        """Tell whether the scheduler has a sequence."""
        found = self._accounts.get(job.channel.account)
        return found is not None and job.sequence in found.inside

    def _least_used(self) -> int:
        """Return what that account has got which got least, of those under way."""
        for account in self._accounts.values():
            account.note_begun()
        got = (each.used_now - each.num_entered_tokens for each in self._accounts.values())
        return max(0, min(got, default=0))

    def _leave(self, name: str) -> None:
        """Forget an account, but for what it used while others go on."""
        used = self._accounts.pop(name).used
        if not self._accounts:
            self._past.clear()
            self._level = 0
            return
        self._past[name] = used
        if len(self._past) > MOST_PAST:
            least = self._least_used()
            self._past = {n: u for n, u in self._past.items() if u > least}
            while len(self._past) > MOST_PAST:
                del self._past[min(self._past, key=self._past.__getitem__)]

    def _next(self, used: dict[str, int]) -> str | None:
        """Return whose turn it is; None if the scheduler has enough of everybody."""
        most = ALONE_WINDOW_TOKENS if len(self._accounts) == 1 else WINDOW_TOKENS
        found: str | None = None
        best: tuple[bool, int] | None = None
        for name, account in self._accounts.items():
            if not account.waiting:
                continue
            rank = account.head().priority >= BACKGROUND, used[name]
            if (best is None or rank < best) and account.has_turn(most):
                found, best = name, rank
        return found

    def _enter(self, name: str, used: dict[str, int]) -> Job:
        """Take the next sequence of an account as one that the scheduler has."""
        account = self._accounts[name]
        sequence = account.head()
        heapq.heappop(account.heap)
        job, cost = account.waiting.pop(sequence)
        self.num_waiting -= 1
        others = [each for other, each in used.items() if other != name and self._runs(other)]
        is_wanted = sequence.priority < BACKGROUND
        if is_wanted and others and used[name] <= min(others):
            self._level -= 1
            sequence.priority += self._level * LEVEL
        account.inside[sequence] = cost
        account.entered[sequence] = _Entered(cost, sequence.priority)
        account.num_entered_tokens += cost
        account.used += cost
        used[name] += cost
        return job

    def _runs(self, name: str) -> bool:
        account = self._accounts.get(name)
        return account is not None and bool(account.inside)
