"""The default scheduler: which sequences run in the next step, and with how many tokens.

It batches continuously (Yu et al., 2022, "Orca"), decodes first, and prefills in chunks (Agrawal et
al., 2023, arXiv:2308.16369). A time budget bounds each chunk, so that no prompt stalls an answer.

Pure: it holds sequences and numbers, and asks a cache for room. It knows no clock, no text and no
array.
"""

import bisect

from vlmkit.errors import QueueFull
from vlmkit.interfaces.engine import Admission, Cache
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import Step, WorkItem
from vlmkit.running.scheduling.prefill_budget import MIN_CHUNK_TOKENS, PrefillBudget
from vlmkit.running.scheduling.prefix_sharing import PrefixSharing
from vlmkit.running.scheduling.step_plan import StepPlan, new_plan
from vlmkit.running.scheduling.waiting_queue import MAX_FOLLOWERS, WaitingQueue
from vlmkit.settings.scheduler import SchedulerSettings


class ContinuousScheduler:
    """Serves by priority, then first come first served; preempts the last comer first.

    Args:
        settings: bounds of the queue and of a step; the defaults when None.
    """

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.settings = settings or SchedulerSettings()
        self._prefix_sharing = PrefixSharing()
        self._queue = WaitingQueue(self._prefix_sharing)
        self._running: list[Sequence] = []  # by rank
        self._prefill_budget = PrefillBudget(self.settings)
        self._waited_s = 0.0  # that answers have waited for prompts since their last tokens
        self._is_prefill_turn = True

    @property
    def max_waiting(self) -> int:
        """Sequences that the queue takes."""
        return self.settings.max_waiting

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._queue.ranks) - len(self._running)

    @property
    def num_running(self) -> int:
        """Sequences with room in the cache."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence; see :meth:`vlmkit.interfaces.scheduler.Scheduler.add`."""
        if self.num_waiting >= self.settings.max_waiting:
            raise QueueFull(
                f"{self.settings.max_waiting} requests are waiting already",
                hint="try again later",
            )
        self._queue.add(sequence)

    def plan(self, cache: Cache) -> Step:
        """Choose the next step: decodes, then prefills under way, then newcomers.

        Some engines gain nothing by mixing prefills and decodes. There a step is all decodes, or
        one chunk of one prompt. So the tokens of answers are delivered before a chunk runs, and the
        first token of a prompt before the next prompt is prefilled.
        """
        plan = new_plan(self.settings, self._running)
        self._queue.requeue_ready()
        mixes = cache.limits.mixes_prefill_and_decode
        self._admit_urgent(plan, cache)
        is_prefill_turn = self._limit_prefill(plan, mixes=mixes)
        if mixes or not is_prefill_turn:
            self._plan_decodes(plan, cache)
        if mixes or not plan.items:
            if len(plan.items) < len(self._running):  # some prefill
                plan.add_chunks(self._running, cache.limits)
            self._admit(plan, cache)
        if not plan.items:  # not its turn, or a newcomer whose prompt was cached but for a token
            self._plan_decodes(plan, cache)
        self._is_prefill_turn = not plan.num_prefills  # unless it runs: see commit
        return plan.step()

    def commit(self, step: Step, duration_s: float) -> None:
        """Record that a step was computed, and learn from its duration."""
        if not step.items:
            return
        chunks = []
        for item in step.items:
            if item.sequence.is_prefilling:
                chunks.append(item)
            item.sequence.num_computed_tokens = item.stop
        self._prefill_budget.record(sum(item.num_tokens for item in chunks), duration_s)
        is_chunk_alone = len(chunks) == len(step.items)
        self._waited_s = self._waited_s + duration_s if is_chunk_alone else 0.0
        self._is_prefill_turn = True
        for item in chunks:
            if item.stop == len(item.sequence):
                self._prefix_sharing.stop(item.sequence)

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        """Forget a sequence that ended, and release its room."""
        if sequence not in self._queue.ranks:
            return
        if self._stop_running(sequence):
            cache.release(sequence)
        else:
            self._queue.remove(sequence)
        self._queue.forget(sequence)

    def _limit_prefill(self, plan: StepPlan, *, mixes: bool) -> bool:
        """Limit prompt tokens to the time that answers can spare.

        Returns:
            Whether it is the turn of prefills.
        """
        if all(sequence.is_held or sequence.is_prefilling for sequence in self._running):
            return True
        waited_s = 0.0 if mixes else self._waited_s
        num_tokens = self._prefill_budget.num_prompt_tokens(waited_s)
        plan.num_prompt_tokens_left = max(num_tokens, MIN_CHUNK_TOKENS)
        return self._is_prefill_turn and (not waited_s or num_tokens >= MIN_CHUNK_TOKENS)

    def _plan_decodes(self, plan: StepPlan, cache: Cache) -> None:
        for sequence in list(self._running):
            if sequence.is_held or sequence.is_prefilling or plan.num_tokens_left < 1:
                continue
            if sequence in plan.preempted or not self._reserve(sequence, plan, cache):
                continue
            plan.add_decode(sequence)
        # Where chunks run one after the other, drafts pay for an answer that is alone.
        if (mixes := cache.limits.mixes_prefill_and_decode) or len(plan.items) == 1:
            has_prompts = self.num_waiting or len(plan.items) < len(self._running)
            num_kept = MIN_CHUNK_TOKENS if mixes and has_prompts else 0  # which prompts may take
            plan.num_tokens_left -= num_kept
            plan.items = [
                self._with_drafts(item, plan, cache) if item.sequence.drafts else item
                for item in plan.items
            ]
            plan.num_tokens_left += num_kept

    def _with_drafts(self, item: WorkItem, plan: StepPlan, cache: Cache) -> WorkItem:
        """Lengthen an item by its sequence's drafts, where budget and room are left over."""
        sequence = item.sequence
        num_drafts = min(cache.limits.max_draft_tokens, plan.num_tokens_left)
        drafts = sequence.drafts[: max(0, num_drafts)]
        if not drafts or not cache.reserve(sequence, item.stop + len(drafts)):
            return item
        plan.num_tokens_left -= len(drafts)
        num_tokens = 1 + len(drafts)
        return WorkItem(sequence, item.start, num_tokens, num_tokens, drafts)

    def _admit_urgent(self, plan: StepPlan, cache: Cache) -> None:
        """Admit newcomers in place of less urgent sequences, before those are planned."""
        while (sequence := self._queue.head(cache.limits)) is not None and self._running:
            if sequence.priority >= self._running[-1].priority or sequence in plan.preempted:
                return
            if not self._try_admit(sequence, plan, cache):
                return

    def _admit(self, plan: StepPlan, cache: Cache) -> None:
        """Admit newcomers in order of rank while there is budget and room."""
        limits = cache.limits
        while plan.may_prefill(limits):
            max_followers = MAX_FOLLOWERS if plan.items else len(self._queue)
            if (sequence := self._queue.head(limits, max_followers)) is None:
                return
            if sequence in plan.preempted or not self._try_admit(sequence, plan, cache):
                return
            if sequence.is_prefilling:
                plan.add_chunk(sequence, limits)

    def _try_admit(self, sequence: Sequence, plan: StepPlan, cache: Cache) -> bool:
        """Admit the head of the queue, preempting held and less urgent sequences if needed."""
        max_running = min(self.settings.max_running, cache.limits.max_sequences)
        admission: Admission | None = None
        while len(self._running) >= max_running or (admission := cache.admit(sequence)) is None:
            victim = self._victim()
            if victim is None or not (victim.is_held or victim.priority > sequence.priority):
                return False
            self._preempt(victim, plan, cache)
        self._queue.pop()
        sequence.num_computed_tokens = admission.num_cached
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = admission.num_cached
        bisect.insort(self._running, sequence, key=self._queue.ranks.__getitem__)
        if sequence.is_prefilling:
            self._prefix_sharing.start(sequence)
        return True

    def _reserve(self, sequence: Sequence, plan: StepPlan, cache: Cache) -> bool:
        """Reserve room for a decode; return False if the sequence itself had to be preempted."""
        while not cache.reserve(sequence, len(sequence)):
            victim = self._victim() or sequence
            self._preempt(victim, plan, cache)
            if victim is sequence:
                return False
        return True

    def _victim(self) -> Sequence | None:
        """Return the sequence to preempt first: the last held one, or else the last comer."""
        last = self._running[-1] if self._running else None
        return next((s for s in reversed(self._running) if s.is_held), last)

    def _preempt(self, sequence: Sequence, plan: StepPlan, cache: Cache) -> None:
        """Release the room of a sequence and queue it again; its tokens are computed anew."""
        self._stop_running(sequence)
        cache.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.features.clear()
        plan.preempted[sequence] = None
        self._queue.put_back(sequence)

    def _stop_running(self, sequence: Sequence) -> bool:
        """Take a sequence out of those that run; return whether it was one of them."""
        ranks = self._queue.ranks
        position = bisect.bisect_left(self._running, ranks[sequence], key=ranks.__getitem__)
        if self._running[position : position + 1] != [sequence]:
            return False
        del self._running[position]
        self._prefix_sharing.stop(sequence)
        return True
