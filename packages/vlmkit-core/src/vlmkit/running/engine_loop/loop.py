"""The engine loop: plan, encode, forward, sample, commit, in a thread of its own.

Everything that touches the scheduler, the engine or the sampler happens here, so none of them needs
a lock; media are encoded beside it, and who needs one sits out until it is there. Every request
ends in exactly one of finished, aborted and failed; whatever the way, its room, its features and
its place are gone afterwards.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial

from vlmkit.errors import EngineFailed, QueueFull, RequestError, VlmkitError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.observer import StepFacts
from vlmkit.interfaces.proposer import Proposer
from vlmkit.interfaces.sampler import Sampler
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import Step, WorkItem
from vlmkit.kit import heap
from vlmkit.running.engine_loop.active_jobs import ActiveJobs
from vlmkit.running.engine_loop.channel import Channel
from vlmkit.running.engine_loop.drafting import Drafting
from vlmkit.running.engine_loop.encoder_queue import EncoderQueue, waits
from vlmkit.running.engine_loop.feature_cache import FeatureCache
from vlmkit.running.engine_loop.inbox import Inbox
from vlmkit.running.engine_loop.job import Job
from vlmkit.running.engine_loop.loop_stats import LoopStats
from vlmkit.running.engine_loop.step_executor import Outcome, StepExecutor
from vlmkit.running.engine_loop.wakeups import Wakeups
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames, faulty_component
from vlmkit.running.faults.engine_errors import engine_failed
from vlmkit.running.faults.watchdog import Watchdog, WatchedWork, shown
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.running.scheduling.fair_share import LEFT_TO_OTHERS, may_acquire

log = logging.getLogger(__name__)

FAILED = "the engine loop failed; no more requests are served; at fault is %s"
IDLE_S = 1.0  # without work, until freed memory is given back
LET_GO_S = 10.0  # for work that was given up to end after all, before its memory is left behind


class Loop:
    """Runs jobs until it is closed.

    Args:
        engine: computes.
        encoder: encodes media; None for a text model.
        scheduler: decides.
        sampler: chooses tokens.
        features: of media that were there before.
        proposer: guesses what follows; None never does.
        observers: who is told of its steps; None where nobody listens.
        slow_s: how long a step or an encoding may take before it is told in the log.
        stuck_s: how long it may take before it is given up; for ever when None.
        component_names: who made all of these.
    """

    def __init__(  # noqa: PLR0913 - one for each part
        self,
        *,
        engine: Engine,
        encoder: MediaEncoder | None,
        scheduler: Scheduler,
        sampler: Sampler,
        features: FeatureCache,
        proposer: Proposer | None = None,
        observers: ObserverDispatch | None = None,
        slow_s: float = 60.0,
        stuck_s: float | None = None,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._engine = engine
        self._component_names = component_names
        self._parts = {"scheduler": scheduler, "engine": engine, "media_encoder": encoder}
        self._block_tokens = engine.limits.prefix_block_tokens
        self._observers = observers
        self._executor = StepExecutor(engine, sampler, component_names)
        self._encodings = EncoderQueue(encoder, features, self.wake, component_names)
        self._drafting = Drafting(proposer, engine.limits, component_names)
        self._scheduler = scheduler
        self.stats = LoopStats()
        self._jobs = ActiveJobs(
            engine, scheduler, self._encodings, self._drafting, self.stats, component_names
        )
        self._inbox = Inbox()
        self._is_stuck = False  # nothing can run until a reader or a newcomer changes something
        self._has_passed = False  # all of the last step waits for images
        self._is_given_up = False
        self._let_go_s = min(LET_GO_S, stuck_s or LET_GO_S)
        self._since = 0.0  # when the present step was begun; 0 while there is nothing to do
        self._items: tuple[WorkItem, ...] = ()  # of the present step
        self._thread = threading.Thread(target=self._run, name="vlmkit-loop", daemon=True)
        self._thread.start()
        self._watchdog = Watchdog(self._watched(), self._give_up, slow_s, stuck_s)

    # Called from any thread.

    @property
    def is_alive(self) -> bool:
        """Whether the loop can still serve requests."""
        return self._inbox.failure is None and self._thread.is_alive()

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place."""
        return self._inbox.num_jobs + self._jobs.turns.num_waiting + self._scheduler.num_waiting

    @property
    def is_full(self) -> bool:
        """Whether the queue takes no more sequences."""
        return self.num_waiting >= self._scheduler.max_waiting

    @property
    def num_running(self) -> int:
        """Sequences that have a place."""
        return self._scheduler.num_running

    @property
    def num_jobs(self) -> int:
        """Sequences that the loop knows of; zero when every request is over."""
        return len(self._jobs)

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Call a function with the reason when the loop fails, in its thread; here if it has."""
        self._inbox.on_failure(tell)

    def submit(self, jobs: list[Job]) -> None:
        """Hand over the sequences of one request.

        Raises:
            QueueFull: too many wait already.
            RequestError: there are more of them than may ever wait.
            EngineError: the loop is closed or has failed.
        """
        self._inbox.put(jobs, self._refuse_too_many)

    def _refuse_too_many(self, jobs: list[Job]) -> None:
        most, num_waiting, num_new = self._scheduler.max_waiting, self.num_waiting, len(jobs)
        if num_new > most:
            raise RequestError(f"n is over the {most} places of the queue", param="n")
        if num_waiting + num_new <= most - most // LEFT_TO_OTHERS:
            return
        account, turns = jobs[0].channel.account, self._jobs.turns
        num_own = self._inbox.num_jobs_of(account) + turns.num_waiting_of(account)
        num_accounts = turns.num_accounts + (not num_own)
        if not may_acquire(
            num_new, most=most, held=num_waiting, own=num_own, num_accounts=num_accounts
        ):
            raise QueueFull("too many requests are waiting already", hint="try again later")

    def abort(self, channel: Channel) -> None:
        """End a request; its room is free after the step that runs now."""
        self._inbox.abort(channel)

    def wake(self) -> None:
        """Look again: a slow reader has caught up, or an image was encoded."""
        self._inbox.wake()

    def drain(self, timeout_s: float) -> bool:
        """Take no new requests and wait for the present ones; tell whether all ended in time."""
        return self._inbox.drain(lambda: not self._jobs, timeout_s)

    def close(self) -> None:
        """End every request as aborted and stop the thread.

        Raises:
            EngineFailed: it was given up, and still computes: nothing that it uses may be freed.
        """
        self._inbox.close()
        while not (has_ended := self._has_ended(1.0)) and not self._is_given_up:
            continue
        has_ended = has_ended or self._has_ended(self._let_go_s)
        self._watchdog.stop()
        if not has_ended:
            raise EngineFailed("an engine that was given up still computes and keeps its memory")

    def _has_ended(self, timeout_s: float) -> bool:
        """Wait for both threads, of which this may be one."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        return self._encodings.join(timeout_s)

    # The watchdog's thread.

    def _watched(self) -> tuple[WatchedWork, ...]:
        """Return what may take too long."""

        def ident() -> int | None:
            return self._thread.ident

        def count_step() -> None:
            self.stats.num_slow_steps += 1

        def count_encoding() -> None:
            self.stats.num_slow_encodings += 1

        def encoder_ident() -> int | None:
            return encodings.ident

        encodings = self._encodings
        return (
            WatchedWork("a step", lambda: self._since, self._step_shown, ident, count_step),
            WatchedWork(
                "an encoding",
                lambda: encodings.since,
                self._encoding_shown,
                encoder_ident,
                count_encoding,
            ),
        )

    def _step_shown(self) -> str:
        items = self._items
        num_tokens = sum(item.num_tokens for item in items)
        whose = self._requests(item.sequence for item in items)
        return f"sequences: {len(items)}, tokens: {num_tokens}, requests: {whose}"

    def _encoding_shown(self) -> str:
        slots = self._encodings.present
        num_tokens = sum(slot.num_features for slot in slots.values())
        whose = self._requests(self._encodings.waiting(slots))
        return f"media: {len(slots)}, tokens: {num_tokens}, requests: {whose}"

    def _requests(self, sequences: Iterable[Sequence]) -> str:
        jobs = map(self._jobs.get, sequences)
        return shown({job.channel.facts.id for job in jobs if job is not None})

    def _give_up(self, error: BaseException) -> None:
        """Tell everyone that nothing more will come of what is stuck; it itself is left alone."""
        self._is_given_up = True
        watchers = self._inbox.fail(error)
        self._inbox.end(self._jobs.know)
        self._jobs.tell_all(partial(engine_failed, error), Wakeups())
        for tell in watchers:
            _tell(tell, error)

    # The loop's own thread.

    def _run(self) -> None:
        try:
            while self._serve_inbox():
                self._step()
            if self._inbox.failure is None:
                self._inbox.end(self._jobs.know)
                self._jobs.abort_all()
            else:  # it was given up, and everyone was told
                self._jobs.fail_all(partial(engine_failed, self._inbox.failure))
        except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
            self._fail(error)
        finally:
            self._since, self._items = 0.0, ()
            self._encodings.stop()
            self._inbox.wake()  # for who waits until nothing runs

    def _fail(self, error: BaseException) -> None:
        """Tell everyone that the loop failed, whatever goes wrong on the way, such as memory."""
        part = faulty_component(error, self._parts)
        who = "the engine" if part is None else self._component_names.of(part)
        _tried(partial(log.critical, FAILED, who, exc_info=error))
        _tried(partial(traceback.clear_frames, error.__traceback__))  # which hold a step's arrays
        watchers = self._inbox.fail(error)
        _tried(partial(self._inbox.end, self._jobs.know))
        _tried(partial(self._jobs.fail_all, partial(engine_failed, error, who)))
        self._encodings.stop()
        self._inbox.wake()
        for tell in watchers:  # last, since a watcher may close what this loop is part of
            _tell(tell, error)

    def _step(self) -> None:  # a frame of its own, so that an idle loop holds nobody's images
        started, num_sampled = time.perf_counter(), self.stats.num_tokens_sampled
        step = self._scheduler.plan(self._engine)
        items = self._encode(step)
        began = time.perf_counter()
        done = self._forward(items)
        self._commit(step, done, time.perf_counter() - began)
        self._items = ()
        if self._observers is not None and self._observers.hears("step") and done:
            facts = StepFacts(
                num_sequences=len(done),
                num_tokens=sum(outcome.item.num_tokens for outcome in done),
                num_sampled=self.stats.num_tokens_sampled - num_sampled,
                num_preempted=len(step.preempted),
                num_running=self.num_running,
                num_waiting=self.num_waiting,
                step_s=time.perf_counter() - started,
            )
            self._observers.tell("step", facts)

    def _serve_inbox(self) -> bool:
        """Do what other threads asked for; wait while there is nothing to run."""
        self._jobs.wakeups.flush()
        self._since = 0.0
        self._wait()
        self._since = time.perf_counter()
        self._is_stuck = False
        mail = self._inbox.take(self._jobs.know)
        if mail is None:
            return False
        self._jobs.accept(mail.new)
        if mail.aborted:
            self._jobs.abort(mail.aborted)
        self._jobs.let_go()
        self._take_features()
        self._jobs.wakeups.flush()  # who was taken or refused must not wait for the step
        return True

    def _wait(self) -> None:
        """Wait for something to do; after a moment, give back what the last requests took."""
        if not self._inbox.wait(self._can_run, IDLE_S):
            heap.trim()
            self._inbox.wait(self._can_run)

    def _can_run(self) -> bool:
        return not self._is_stuck and self._jobs.can_run

    def _take_features(self) -> None:
        """Hand out what the encoder has finished."""
        for sequence, error in self._encodings.take().items():
            self._jobs.fail_sequence(sequence, error)
        self.stats.num_media_encoded = self._encodings.num_encoded

    def _encode(self, step: Step) -> tuple[WorkItem, ...]:
        """Have the step's images encoded; return the items that need not wait for one."""
        self.stats.num_preemptions += len(step.preempted)
        has_news = self._encodings.start(step.encodes)
        for sequence in step.preempted:
            self._encodings.forget(sequence)
        items = step.items
        if self._encodings.is_busy:
            items = tuple(item for item in items if not waits(item))
        if items or has_news or step.preempted:
            self._has_passed = False
        elif step.items and not self._has_passed:
            self._has_passed = True  # who takes turns may have others to run in the next step
        else:
            self._is_stuck = self._encodings.is_busy or not self._jobs.fail_one_that_never_fits()
        return items

    def _forward(self, items: tuple[WorkItem, ...]) -> list[Outcome]:
        """Compute the items; return what came of those that went well."""
        if not items:
            return []
        for item in items:
            if item.start < item.sequence.num_prompt_tokens:
                _note_start(self._jobs[item.sequence])
        self._items = items
        results = self._executor.compute(items)
        done = [result for result in results if isinstance(result, Outcome)]
        if len(done) == len(results):
            return done
        for item, result in zip(items, results, strict=True):
            if isinstance(result, VlmkitError):
                self._jobs.fail_sequence(item.sequence, result)
        return [outcome for outcome in done if outcome.item.sequence in self._jobs]

    def _commit(self, step: Step, done: list[Outcome], duration_s: float) -> None:
        """Note what was computed, and hand every new token on."""
        if not done:
            return
        standing = tuple(outcome.standing for outcome in done)
        self._scheduler.commit(Step(step.encodes, standing, step.preempted), duration_s)
        self.stats.num_steps += 1
        self.stats.num_tokens_computed += sum(outcome.item.num_tokens for outcome in done)
        for outcome, item in zip(done, standing, strict=True):
            sequence = item.sequence
            if (job := self._jobs.get(sequence)) is None:  # a sibling's text broke
                continue
            num_own = item.stop
            if outcome.item.drafts:
                num_own = min(num_own, len(sequence))  # drafts that stand are yet to be appended
                self._note_drafts(outcome, item)
            self._share(sequence, item.start, num_own)
            if sequence.features:
                _drop_used_features(item)
            self._jobs.take(job, outcome)
            if outcome.samples and sequence in self._jobs:
                if num_own < item.stop:
                    self._share(sequence, num_own, item.stop)
                self._drafting.propose(sequence)

    def _share(self, sequence: Sequence, start: int, stop: int) -> None:
        """Let the engine share tokens, if those from ``start`` on end a block of them."""
        block_tokens = self._block_tokens
        if block_tokens and stop // block_tokens > start // block_tokens:
            self._engine.commit(sequence, stop)

    def _note_drafts(self, outcome: Outcome, standing: WorkItem) -> None:
        """Forget drafts that are wrong, and tell how many were right."""
        item = outcome.item
        if standing.stop < item.stop:
            self._engine.truncate(item.sequence, standing.stop)
        num_accepted = len(outcome.samples) - 1
        self._drafting.note(item.sequence, len(item.drafts), num_accepted)
        self.stats.num_tokens_drafted += len(item.drafts)
        self.stats.num_drafts_accepted += num_accepted


def _tell(watcher: Callable[[BaseException], None], failure: BaseException) -> None:
    try:
        watcher(failure)
    except Exception:
        log.exception("a watcher of the engine loop failed")


def _tried(do: Callable[[], object]) -> None:
    """Do one of several things, of which none may keep the others from being done."""
    try:
        do()
    except Exception:
        log.exception("the end of the engine loop failed in part")


def _note_start(job: Job) -> None:
    """Let a request know that its prompt is being read, and how much of it was there."""
    job.channel.clock.start()
    if job.index == 0 and job.sequence.num_cached_tokens is not None:
        cached = min(job.sequence.num_cached_tokens, job.sequence.num_prompt_tokens)
        job.channel.cached_tokens = cached


def _drop_used_features(item: WorkItem) -> None:
    """Forget features whose slot is in the cache as a whole."""
    media = item.sequence.prompt.media
    for index in [i for i in item.sequence.features if media[i].stop <= item.stop]:
        del item.sequence.features[index]
