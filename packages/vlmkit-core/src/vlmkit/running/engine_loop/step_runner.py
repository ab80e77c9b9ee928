"""One step of the engine loop: plan, encode, forward, commit.

Everything here runs in the loop's thread. It knows no inbox and no thread of its own:
:mod:`.loop` calls it while there is work.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.engine import EmitsCacheEvents, Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.observer import StepFacts
from vlmkit.interfaces.proposer import Proposer
from vlmkit.interfaces.sampler import Sampler
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import Step, WorkItem
from vlmkit.running.engine_loop.active_jobs import ActiveJobs
from vlmkit.running.engine_loop.drafting import Drafting
from vlmkit.running.engine_loop.encoder_queue import EncoderQueue, waits
from vlmkit.running.engine_loop.job import Job
from vlmkit.running.engine_loop.loop_stats import LoopStats
from vlmkit.running.engine_loop.step_executor import Outcome, StepExecutor
from vlmkit.running.engine_loop.step_overlap import StepOverlap
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.observers.cache_feed import CacheFeed
from vlmkit.running.observers.dispatch import ObserverDispatch

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoopComponents:
    """The components that the engine loop drives.

    Attributes:
        engine: computes tokens.
        encoder: encodes media; None for a text model.
        scheduler: decides which tokens run next.
        sampler: chooses tokens.
        proposer: guesses tokens for the engine to verify; None guesses nothing.
        observers: receive facts about each step; None if there are no observers.
        names: what errors and the log call each component.
    """

    engine: Engine
    scheduler: Scheduler
    sampler: Sampler
    encoder: MediaEncoder | None = None
    proposer: Proposer | None = None
    observers: ObserverDispatch | None = None
    names: ComponentNames = UNKNOWN


class StepRunner:
    """Runs steps over the active sequences.

    Args:
        components: what computes.
        encodings: encodes media beside the loop.
        num_waiting: returns how many sequences wait, including those that the loop has not seen.

    Attributes:
        stats: counts what ran.
        jobs: the active sequences.
        overlap: computes steps, and starts the next one where that is possible.
        items: the items that the engine computes now; empty between steps.
        is_stuck: whether nothing can run until an encoding, a reader or a new request changes that.
    """

    def __init__(
        self, components: LoopComponents, encodings: EncoderQueue, num_waiting: Callable[[], int]
    ) -> None:
        engine, names = components.engine, components.names
        self._engine = engine
        self._scheduler = components.scheduler
        self._observers = components.observers
        self._cache_feed = _cache_feed(components)
        self._block_tokens = engine.limits.prefix_block_tokens
        executor = StepExecutor(engine, components.sampler, names)
        self.overlap = StepOverlap(engine, components.scheduler, executor, num_waiting)
        self._encodings = encodings
        self._num_waiting = num_waiting
        self._drafting = Drafting(components.proposer, engine.limits, names)
        self._waited_for_media = False  # every item of the last step waited for an encoding
        self._ended = 0.0  # when the engine and the sampler had computed the last step
        self.stats = LoopStats()
        self.jobs = ActiveJobs(
            engine, components.scheduler, encodings, self._drafting, self.stats, names
        )
        self.items: tuple[WorkItem, ...] = ()
        self.is_stuck = False

    def run(self) -> None:
        """Run one step.

        It is a function of its own so that an idle loop keeps no reference to a request's images.
        """
        started, num_sampled = time.perf_counter(), self.stats.num_tokens_sampled
        step, items, began = self._next_items()
        done = self._forward(items)
        self._ended = time.perf_counter()
        self._commit(step, done, self._ended - began)
        self.items = ()
        if self._observers is not None and self._observers.handles("step") and done:
            facts = StepFacts(
                num_sequences=len(done),
                num_tokens=sum(outcome.item.num_tokens for outcome in done),
                num_sampled=self.stats.num_tokens_sampled - num_sampled,
                num_preempted=len(step.preempted),
                num_running=self._scheduler.num_running,
                num_waiting=self._num_waiting(),
                step_s=time.perf_counter() - started,
            )
            self._observers.notify("step", facts)

    def _next_items(self) -> tuple[Step, tuple[WorkItem, ...], float]:
        """Return the next step, those of its items that can run, and when the engine began."""
        if items := self.overlap.started_items(self.jobs):
            self.stats.num_overlapped_steps += 1
            return Step((), items), items, self._ended
        step = self._scheduler.plan(self._engine)
        items = self._encode(step)
        return step, items, time.perf_counter()

    def report_cache_changes(self) -> None:
        """Send observers what changed in the engine's cache since the last call."""
        if self._cache_feed is not None:
            self._cache_feed.flush()

    def take_features(self) -> None:
        """Give finished encodings to their sequences, and fail the sequences of failed ones."""
        for sequence, error in self._encodings.take().items():
            self.jobs.fail_sequence(sequence, error)
        self.stats.num_media_encoded = self._encodings.num_encoded

    def _encode(self, step: Step) -> tuple[WorkItem, ...]:
        """Start the step's encodings; return the items that need not wait for one."""
        self.stats.num_preemptions += len(step.preempted)
        has_news = self._encodings.start(step.encodes)
        for sequence in step.preempted:
            self._encodings.forget(sequence)
        items = step.items
        if self._encodings.is_busy:
            items = tuple(item for item in items if not waits(item))
        if items or has_news or step.preempted:
            self._waited_for_media = False
        elif step.items and not self._waited_for_media:
            # A scheduler that alternates may have other items in the next step.
            self._waited_for_media = True
        else:
            self.is_stuck = self._encodings.is_busy or not self.jobs.fail_one_that_never_fits()
        return items

    def _forward(self, items: tuple[WorkItem, ...]) -> list[Outcome]:
        """Compute the items; return the outcomes of those that did not fail."""
        if not items:
            return []
        for item in items:
            if item.start < item.sequence.num_prompt_tokens:
                _note_start(self.jobs[item.sequence])
        self.items = items
        results = self.overlap.compute(items)
        done = [result for result in results if isinstance(result, Outcome)]
        if len(done) == len(results):
            return done
        for item, result in zip(items, results, strict=True):
            if isinstance(result, VlmkitError):
                self.jobs.fail_sequence(item.sequence, result)
        return [outcome for outcome in done if outcome.item.sequence in self.jobs]

    def _commit(self, step: Step, done: list[Outcome], duration_s: float) -> None:
        """Tell the scheduler what was computed, and give each sequence its new tokens."""
        if not done:
            return
        standing = tuple(outcome.standing for outcome in done)
        continued: list[Sequence] = []
        self._scheduler.commit(Step(step.encodes, standing, step.preempted), duration_s)
        self.stats.num_steps += 1
        self.stats.num_tokens_computed += sum(outcome.item.num_tokens for outcome in done)
        for outcome, item in zip(done, standing, strict=True):
            sequence = item.sequence
            if (job := self.jobs.get(sequence)) is None:  # a sibling failed and ended the request
                continue
            num_own = item.stop
            if outcome.item.drafts:
                num_own = min(num_own, len(sequence))  # accepted drafts are not appended yet
                self._note_drafts(outcome, item)
            self._share(sequence, item.start, num_own)
            if sequence.features:
                _drop_used_features(item)
            self.jobs.take(job, outcome)
            if outcome.samples and sequence in self.jobs:
                if num_own < item.stop:
                    self._share(sequence, num_own, item.stop)
                continued.append(sequence)
        # A failed sibling may have ended a request meanwhile.
        self._drafting.propose([each for each in continued if each in self.jobs])
        self.stats.num_failed_proposers = int(self._drafting.has_failed)

    def _share(self, sequence: Sequence, start: int, stop: int) -> None:
        """Let the engine share cached tokens if a block of them ends in ``start`` to ``stop``."""
        block_tokens = self._block_tokens
        if block_tokens and stop // block_tokens > start // block_tokens:
            self._engine.commit(sequence, stop)

    def _note_drafts(self, outcome: Outcome, standing: WorkItem) -> None:
        """Remove rejected drafts from the cache, and count the accepted ones."""
        item = outcome.item
        if standing.stop < item.stop:
            self._engine.truncate(item.sequence, standing.stop)
        num_accepted = len(outcome.samples) - 1
        self._drafting.note(item.sequence, len(item.drafts), num_accepted)
        self.stats.num_tokens_drafted += len(item.drafts)
        self.stats.num_drafts_accepted += num_accepted


def _cache_feed(components: LoopComponents) -> CacheFeed | None:
    """Let the engine emit cache events if an observer receives them; return what collects them."""
    engine, observers, names = components.engine, components.observers, components.names
    if observers is None or observers.cache_feed is None:
        return None
    if not isinstance(engine, EmitsCacheEvents):
        log.warning("%s emits no cache events, which an observer receives", names.of("engine"))
        return None
    try:
        engine.set_cache_listener(observers.cache_feed)
    except Exception:  # an engine may raise anything
        log.exception("%s failed; no observer receives cache events", names.of("engine"))
        return None
    observers.start_cache_events()
    return observers.cache_feed


def _note_start(job: Job) -> None:
    """Note on a request's channel that its prefill started, and how many tokens were cached."""
    job.channel.clock.start()
    if job.index == 0 and job.sequence.num_cached_tokens is not None:
        cached = min(job.sequence.num_cached_tokens, job.sequence.num_prompt_tokens)
        job.channel.cached_tokens = cached


def _drop_used_features(item: WorkItem) -> None:
    """Drop the features of each medium whose tokens are all in the cache."""
    media = item.sequence.prompt.media
    for index in [i for i in item.sequence.features if media[i].stop <= item.stop]:
        del item.sequence.features[index]
