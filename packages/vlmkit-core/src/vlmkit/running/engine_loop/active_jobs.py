"""The sequences that the loop knows, and how each ends: finished, aborted or failed, exactly once.

Whichever way a sequence ends, its cache blocks, features, drafts and slot are freed. Everything
here runs in the loop's thread, unless a method says otherwise.
"""

import logging
from collections.abc import Callable

from vlmkit.errors import EngineError, VlmkitError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.engine_loop.drafting import Drafting
from vlmkit.running.engine_loop.encoder_queue import EncoderQueue
from vlmkit.running.engine_loop.fair_queue import FairQueue
from vlmkit.running.engine_loop.job import Job
from vlmkit.running.engine_loop.loop_stats import LoopStats
from vlmkit.running.engine_loop.step_executor import Outcome
from vlmkit.running.engine_loop.stream import Channel, Wakeups
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.faults.isolation import engine_error
from vlmkit.types.completion import Chunk

log = logging.getLogger(__name__)


class ActiveJobs:
    """The sequences that run or wait, by sequence.

    Args:
        engine: holds their cache blocks.
        scheduler: holds their slots.
        encodings: encodes their media.
        drafting: drafts their tokens.
        stats: counts how they end.
        component_names: what errors call the components.
    """

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        encodings: EncoderQueue,
        drafting: Drafting,
        stats: LoopStats,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._component_names = component_names
        self._engine = engine
        self._scheduler = scheduler
        self._encodings = encodings
        self._drafting = drafting
        self._stats = stats
        self._jobs: dict[Sequence, Job] = {}
        self._held: set[Sequence] = set()
        self.queue = FairQueue()
        self.wakeups = Wakeups()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._jobs

    def __getitem__(self, sequence: Sequence) -> Job:
        return self._jobs[sequence]

    def get(self, sequence: Sequence) -> Job | None:
        """Return the job of a sequence; None if it has ended."""
        return self._jobs.get(sequence)

    @property
    def can_run(self) -> bool:
        """Whether a sequence is not held."""
        return len(self._jobs) > len(self._held)

    def add(self, job: Job) -> None:
        """Add a sequence, which may still wait in the inbox."""
        self._jobs[job.sequence] = job

    def accept(self, new: list[Job]) -> None:
        """Queue sequences, and give the next ones of the fair queue to the scheduler.

        The scheduler may refuse a sequence; its request fails, siblings included.
        """
        self.queue.add(new)
        for job in self.queue.next_jobs(self._scheduler.num_waiting):
            try:
                self._scheduler.add(job.sequence)
            except VlmkitError as error:
                self.fail(job.channel, error)
        for job in new:  # whether it runs or waits
            if job.sequence in self._jobs:
                job.channel.accept(self.wakeups)

    def resume_held(self) -> None:
        """Release held sequences whose readers have caught up."""
        for sequence in [s for s in self._held if not self._jobs[s].channel.is_behind]:
            sequence.is_held = False
            self._held.discard(sequence)

    def take(self, job: Job, outcome: Outcome) -> None:
        """Append an item's outcome to its answer, and pass new chunks to the reader."""
        try:
            chunks = job.take(outcome)
        except Exception as error:  # noqa: BLE001 - a tokenizer may raise anything
            message = f"{self._component_names.of('tokenizer')} failed on this answer"
            self.fail(job.channel, engine_error(message, error, may_quote_input=True))
            return
        for chunk in chunks:
            self._put(job, chunk)

    def _put(self, job: Job, chunk: Chunk) -> None:
        """Pass a chunk to the reader, and end the sequence with its last one."""
        if job.sequence.task == "generate":
            self._stats.num_tokens_sampled += len(chunk.samples)
        job.channel.clock.token()
        if chunk.finish_reason is not None:
            self._remove(job)
            self._stats.num_finished += 1
        job.channel.put(chunk, self.wakeups)
        if chunk.finish_reason is None and job.channel.is_behind:
            job.sequence.is_held = True
            self._held.add(job.sequence)

    def abort(self, channels: set[Channel]) -> None:
        """Abort requests, in one pass, since thousands may end at once."""
        jobs = [job for job in self._jobs.values() if job.channel in channels]
        for job in jobs:
            self._remove(job)
            job.channel.put(Chunk(job.index, finish_reason="abort"), self.wakeups)
        self._stats.num_aborted += len(jobs)

    def fail(self, channel: Channel, error: VlmkitError) -> None:
        """Fail a request with all its choices."""
        jobs = [job for job in self._jobs.values() if job.channel is channel]
        for job in jobs:
            self._remove(job)
        self._stats.num_failed += len(jobs)
        channel.fail(error, self.wakeups)

    def fail_sequence(self, sequence: Sequence, error: VlmkitError) -> None:
        """Fail a sequence's request, unless a sibling's failure already has."""
        if (job := self._jobs.get(sequence)) is not None:
            self.fail(job.channel, error)

    def fail_one_that_never_fits(self) -> bool:
        """Fail a request that the empty cache cannot hold; return whether there was one."""
        inside = (j for s, j in self._jobs.items() if s not in self._held)
        job = next((j for j in inside if self.queue.has_entered(j)), None)
        if self._scheduler.num_running or job is None:
            return False
        self.fail(job.channel, EngineError("the request does not fit the engine's cache"))
        return True

    def abort_all(self) -> None:
        """Abort every request, because the pipeline closes."""
        self.abort(self._channels())
        self.wakeups.flush()

    def fail_all(self, make: Callable[[], VlmkitError]) -> None:
        """Fail every request with an error of its own; the failed component need not clean up."""
        self.fail_channels(make, self.wakeups)
        self._stats.num_failed += len(self._jobs)
        self._jobs.clear()
        self.queue = FairQueue()

    def fail_channels(self, make: Callable[[], VlmkitError], wakeups: Wakeups) -> None:
        """Fail every channel without freeing anything; also called by the watchdog's thread.

        A channel that raises does not delay the others.
        """
        for job in list(self._jobs.values()):
            try:
                if not job.channel.is_done:
                    job.channel.fail(make(), wakeups)
            except Exception:
                log.exception("a request could not be failed after its engine failed")
        wakeups.flush()

    def _channels(self) -> set[Channel]:
        return {job.channel for job in self._jobs.values()}

    def _remove(self, job: Job) -> None:
        """Free everything that a sequence holds."""
        if self.queue.remove(job):
            self._scheduler.remove(job.sequence, self._engine)
        self._encodings.forget(job.sequence)
        self._drafting.forget(job.sequence)
        job.sequence.features.clear()
        self._held.discard(job.sequence)
        del self._jobs[job.sequence]
