"""The engine loop: plan, encode, forward, sample, commit, in a thread of its own.

Everything that touches the scheduler, the engine or the sampler happens here, so none of them needs
a lock; images are encoded beside it, and who needs one sits out until it is there. Every request
ends in exactly one of finished, aborted and failed; whatever the way, its room, its features and
its place are gone afterwards.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from vlmkit import heap
from vlmkit.channel import Channel
from vlmkit.completion import Chunk
from vlmkit.encodings import Encodings, waits
from vlmkit.errors import EngineError, QueueFull, RequestError, VlmkitError
from vlmkit.executor import Executor
from vlmkit.feature_cache import FeatureCache
from vlmkit.isolation import engine_error
from vlmkit.job import Job
from vlmkit.protocols import Engine, Sample, Sampler, Scheduler, VisionEncoder
from vlmkit.sequence import Sequence
from vlmkit.step import Step, WorkItem
from vlmkit.wakeups import Wakeups

log = logging.getLogger(__name__)

IDLE_S = 1.0  # without work, until freed memory is given back

M = TypeVar("M")


@dataclass(slots=True)
class LoopStats:
    """What the loop has done since it started."""

    num_steps: int = 0
    num_tokens_computed: int = 0
    num_tokens_sampled: int = 0
    num_images_encoded: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0


@dataclass(slots=True)
class _Inbox:
    """What other threads ask of the loop."""

    jobs: deque[list[Job]] = field(default_factory=deque)
    aborted: deque[Channel] = field(default_factory=deque)
    is_closing: bool = False
    is_draining: bool = False
    is_changed: bool = False


class Loop:
    """Runs jobs until it is closed.

    Args:
        engine: computes.
        encoder: encodes images; None for a text model.
        scheduler: decides.
        sampler: chooses tokens.
        features: the image feature cache.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        encoder: VisionEncoder | None,
        scheduler: Scheduler,
        sampler: Sampler,
        features: FeatureCache,
    ) -> None:
        self._engine = engine
        self._executor = Executor(engine, sampler)
        self._encodings = Encodings(encoder, features, self.wake)
        self._scheduler = scheduler
        self._jobs: dict[Sequence, Job] = {}
        self._held: set[Sequence] = set()
        self._is_stuck = False  # nothing can run until a reader or a newcomer changes something
        self._has_passed = False  # all of the last step waits for images
        self._wakeups = Wakeups()
        self._inbox = _Inbox()
        self._bell = threading.Condition()
        self._failure: BaseException | None = None
        self._watchers: list[Callable[[BaseException], None]] = []
        self.stats = LoopStats()
        self._thread = threading.Thread(target=self._run, name="vlmkit-loop", daemon=True)
        self._thread.start()

    # Called from any thread.

    @property
    def is_alive(self) -> bool:
        """Whether the loop can still serve requests."""
        return self._failure is None and self._thread.is_alive()

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place."""
        return sum(map(len, list(self._inbox.jobs))) + self._scheduler.num_waiting

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
        with self._bell:
            if self._failure is None:
                self._watchers.append(tell)
                return
        tell(self._failure)

    def submit(self, jobs: list[Job]) -> None:
        """Hand over the sequences of one request.

        Raises:
            QueueFull: too many wait already.
            RequestError: there are more of them than may ever wait.
            EngineError: the loop is closed or has failed.
        """
        with self._bell:
            if self._failure is not None:
                raise failed(self._failure)
            if self._inbox.is_closing or self._inbox.is_draining:
                raise closing()
            if len(jobs) > self._scheduler.max_waiting:
                raise RequestError(
                    f"n is over the {self._scheduler.max_waiting} places of the queue", param="n"
                )
            if self.num_waiting + len(jobs) > self._scheduler.max_waiting:
                raise QueueFull(
                    f"{self._scheduler.max_waiting} requests are waiting already",
                    hint="try again later",
                )
            self._inbox.jobs.append(jobs)
            self._ring()

    def abort(self, channel: Channel) -> None:
        """End a request; its room is free after the step that runs now."""
        with self._bell:
            self._inbox.aborted.append(channel)
            self._ring()

    def wake(self) -> None:
        """Look again: a slow reader has caught up, or an image was encoded."""
        with self._bell:
            self._ring()

    def drain(self, timeout_s: float) -> bool:
        """Take no new requests and wait for the present ones; tell whether all ended in time."""
        with self._bell:
            self._inbox.is_draining = True
            self._ring()
            return self._bell.wait_for(self._is_empty, timeout_s)

    def close(self) -> None:
        """End every request as aborted and stop the thread."""
        with self._bell:
            self._inbox.is_closing = True
            self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._encodings.join()

    def _ring(self) -> None:
        self._inbox.is_changed = True
        self._bell.notify_all()

    def _is_empty(self) -> bool:
        return not self._jobs and not self._inbox.jobs

    # The loop's own thread.

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self._serve_inbox():
                self._step()
            self._end_all(None)
        except BaseException as error:  # a panic of a Rust library is no Exception
            log.critical("the engine loop failed; no more requests are served", exc_info=error)
            with self._bell:
                self._failure = error
            self._end_all(error)
            failure = error
        finally:
            self._encodings.stop()
        if failure is not None:  # last, since a watcher may close what this loop is part of
            self._tell_watchers(failure)

    def _tell_watchers(self, failure: BaseException) -> None:
        for tell in self._watchers:
            try:
                tell(failure)
            except Exception:
                log.exception("a watcher of the engine loop failed")

    def _step(self) -> None:  # a frame of its own, so that an idle loop holds nobody's images
        step = self._scheduler.plan(self._engine)
        items = self._encode(step)
        samples = self._forward(items)
        self._commit(step, samples)

    def _serve_inbox(self) -> bool:
        """Do what other threads asked for; wait while there is nothing to run."""
        self._wakeups.flush()
        self._wait()
        with self._bell:
            self._inbox.is_changed = self._is_stuck = False
            if self._inbox.is_closing:
                return False
            new = [job for jobs in _drained(self._inbox.jobs) for job in jobs]
            aborted = set(_drained(self._inbox.aborted))
            for job in new:
                self._jobs[job.sequence] = job
        for job in new:
            self._accept(job)
        if aborted:
            self._abort(aborted)
        for sequence in [s for s in self._held if not self._jobs[s].channel.is_behind]:
            sequence.is_held = False
            self._held.discard(sequence)
        self._take_features()
        self._wakeups.flush()  # who was taken or refused must not wait for the step to learn it
        return True

    def _wait(self) -> None:
        """Wait for something to do; after a moment, give back what the last requests took."""
        with self._bell:
            if self._inbox.is_draining and self._is_empty():
                self._bell.notify_all()
            if self._bell.wait_for(self._has_work, IDLE_S):
                return
        heap.trim()  # without the lock: who comes now need not wait to be taken
        with self._bell:
            self._bell.wait_for(self._has_work)

    def _has_work(self) -> bool:
        return self._inbox.is_changed or self._can_run()

    def _can_run(self) -> bool:
        return not self._is_stuck and len(self._jobs) > len(self._held)

    def _accept(self, job: Job) -> None:
        if job.sequence not in self._jobs:  # a sibling was refused, and this one with it
            return
        sequence = job.sequence
        try:
            sequence.atomic_spans = self._engine.atomic_spans(sequence.prompt)
            self._scheduler.add(sequence)
        except VlmkitError as error:
            self._fail(job.channel, error)
        except Exception as error:  # noqa: BLE001 - an engine may raise anything
            self._fail(job.channel, engine_error("the engine refused the prompt", error))
        else:
            job.channel.accept(self._wakeups)

    def _take_features(self) -> None:
        """Hand out what the encoder has finished."""
        for sequence, error in self._encodings.take().items():
            self._fail_sequence(sequence, error)
        self.stats.num_images_encoded = self._encodings.num_encoded

    def _encode(self, step: Step) -> tuple[WorkItem, ...]:
        """Have the step's images encoded; return the items that need not wait for one."""
        self.stats.num_preemptions += len(step.preempted)
        has_news = self._encodings.start(step.encodes)
        for sequence in step.preempted:
            self._encodings.forget(sequence)
        items = tuple(item for item in step.items if not waits(item))
        if items or has_news or step.preempted:
            self._has_passed = False
        elif step.items and not self._has_passed:
            self._has_passed = True  # who takes turns may have others to run in the next step
        else:
            self._is_stuck = self._encodings.is_busy or not self._break_deadlock()
        return items

    def _forward(self, items: tuple[WorkItem, ...]) -> list[tuple[WorkItem, Sample | None]]:
        """Compute the items; return those that went well, with the token chosen where wanted."""
        if not items:
            return []
        for item in items:
            self._jobs[item.sequence].channel.clock.start()
        done: list[tuple[WorkItem, Sample | None]] = []
        for item, result in zip(items, self._executor.compute(items), strict=True):
            if isinstance(result, VlmkitError):
                self._fail_sequence(item.sequence, result)
            else:
                done.append((item, result))
        return [(item, sample) for item, sample in done if item.sequence in self._jobs]

    def _commit(self, step: Step, samples: list[tuple[WorkItem, Sample | None]]) -> None:
        """Note what was computed, and hand every new token on."""
        if not samples:
            return
        done = tuple(item for item, _ in samples)
        self._scheduler.commit(Step(step.encodes, done, step.preempted))
        self.stats.num_steps += 1
        self.stats.num_tokens_computed += sum(item.num_tokens for item in done)
        for item, sample in samples:
            if (job := self._jobs.get(item.sequence)) is None:  # a sibling's text broke
                continue
            self._note_cached(job)
            _drop_used_features(item)
            if sample is not None:
                self._take(job, sample)

    def _take(self, job: Job, sample: Sample) -> None:
        """Append one chosen token to its answer, and end the answer if it is complete."""
        self.stats.num_tokens_sampled += 1
        job.channel.clock.token()
        try:
            text, reason = job.take(sample.token_id)
        except Exception as error:  # noqa: BLE001 - a tokenizer may raise anything
            self._fail(job.channel, engine_error("the tokenizer failed on this answer", error))
            return
        if reason is not None:
            self._remove(job)
            self.stats.num_finished += 1
        job.channel.put(Chunk(job.index, text, (sample,), reason), self._wakeups)
        if reason is None and job.channel.is_behind:
            job.sequence.is_held = True
            self._held.add(job.sequence)

    def _note_cached(self, job: Job) -> None:
        if job.index == 0 and job.sequence.num_cached_tokens is not None:
            cached = min(job.sequence.num_cached_tokens, job.sequence.num_prompt_tokens)
            job.channel.cached_tokens = cached

    def _abort(self, channels: set[Channel]) -> None:
        """End requests; all in one pass, since thousands may go at once."""
        jobs = [job for job in self._jobs.values() if job.channel in channels]
        for job in jobs:
            self._remove(job)
            job.channel.put(Chunk(job.index, "", (), "abort"), self._wakeups)
        self.stats.num_aborted += len(jobs)

    def _fail(self, channel: Channel, error: VlmkitError) -> None:
        jobs = self._jobs_of(channel)
        for job in jobs:
            self._remove(job)
        self.stats.num_failed += len(jobs)
        channel.fail(error, self._wakeups)

    def _fail_sequence(self, sequence: Sequence, error: VlmkitError) -> None:
        """Fail a sequence's request, unless a sibling's failure has done so already."""
        if (job := self._jobs.get(sequence)) is not None:
            self._fail(job.channel, error)

    def _jobs_of(self, channel: Channel) -> list[Job]:
        return [job for job in self._jobs.values() if job.channel is channel]

    def _remove(self, job: Job) -> None:
        """Free everything that a sequence has."""
        self._scheduler.remove(job.sequence, self._engine)
        self._encodings.forget(job.sequence)
        job.sequence.features.clear()
        self._held.discard(job.sequence)
        del self._jobs[job.sequence]

    def _break_deadlock(self) -> bool:
        """Fail a request that finds no room although nobody else has any; tell if it did."""
        job = next((j for s, j in self._jobs.items() if s not in self._held), None)
        if self._scheduler.num_running or job is None:
            return False
        self._fail(job.channel, EngineError("the request does not fit the engine's cache"))
        return True

    def _end_all(self, failure: BaseException | None) -> None:
        """Leave nobody waiting when the loop ends."""
        with self._bell:
            jobs = [*self._jobs.values(), *(j for js in _drained(self._inbox.jobs) for j in js)]
            self._jobs = {job.sequence: job for job in jobs}
        channels = {job.channel for job in jobs}
        if failure is None:
            self._abort(channels)
        else:
            for channel in channels:
                channel.fail(failed(failure), self._wakeups)
            self.stats.num_failed += len(jobs)
            self._jobs.clear()
        self._wakeups.flush()
        with self._bell:
            self._bell.notify_all()


def closing() -> EngineError:
    """Return the error of requests that come too late."""
    return EngineError("the pipeline is closing", hint="ask another server")


def failed(cause: BaseException) -> EngineError:
    """Return the error of requests that an engine can serve no more; a fresh one for each.

    One that is raised again and again would collect every raiser's frames.
    """
    error = EngineError("the engine failed", hint="see the server's log")
    error.__cause__ = cause
    return error


def _drained(queue: deque[M]) -> Iterator[M]:
    while queue:
        yield queue.popleft()


def _drop_used_features(item: WorkItem) -> None:
    """Forget features whose image is in the cache as a whole."""
    images = item.sequence.prompt.images
    for image in [i for i in item.sequence.features if images[i].stop <= item.stop]:
        del item.sequence.features[image]
