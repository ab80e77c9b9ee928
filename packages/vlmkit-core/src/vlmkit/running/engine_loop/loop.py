"""The engine loop: a thread that runs steps while there are requests.

Only this thread touches the scheduler, the engine and the sampler, so none of them needs a lock.
Media are encoded beside it, and a sequence that needs one waits until it is encoded. Every request
ends exactly once, as finished, aborted or failed; its cache blocks, features and slot are freed
either way. What happens in a step is in :mod:`.step_runner`.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

from vlmkit.errors import EngineFailed, QueueFull, RequestError
from vlmkit.kit import heap
from vlmkit.running.engine_loop.encoder_queue import EncoderQueue
from vlmkit.running.engine_loop.feature_cache import FeatureCache
from vlmkit.running.engine_loop.inbox import Inbox
from vlmkit.running.engine_loop.job import Job
from vlmkit.running.engine_loop.loop_stats import LoopStats
from vlmkit.running.engine_loop.loop_watch import watched_work
from vlmkit.running.engine_loop.step_runner import LoopComponents, StepRunner
from vlmkit.running.engine_loop.stream import Channel, Wakeups
from vlmkit.running.faults.attribution import faulty_component
from vlmkit.running.faults.engine_errors import engine_failed
from vlmkit.running.faults.watchdog import Watchdog
from vlmkit.running.scheduling.fair_share import RESERVE_DIVISOR, may_acquire

log = logging.getLogger(__name__)

FAILED = "the engine loop failed; no more requests are served; at fault is %s"
IDLE_S = 1.0  # without work, until freed memory is given back
RELEASE_S = 10.0  # to wait for abandoned work to end; after that its memory is not freed


class Loop:
    """Runs jobs until it is closed.

    Args:
        components: what it drives.
        features: cached features of earlier media.
        slow_s: how long a step or an encoding may take before the log reports it.
        stuck_s: how long it may take before the loop gives up; None never gives up.
    """

    def __init__(
        self,
        components: LoopComponents,
        features: FeatureCache,
        *,
        slow_s: float = 60.0,
        stuck_s: float | None = None,
    ) -> None:
        self._names = components.names
        self._parts = {
            "scheduler": components.scheduler,
            "engine": components.engine,
            "media_encoder": components.encoder,
        }
        self._scheduler = components.scheduler
        self._inbox = Inbox()
        self._encodings = EncoderQueue(components.encoder, features, self.wake, self._names)
        self._steps = StepRunner(components, self._encodings, lambda: self.num_waiting)
        self._jobs = self._steps.jobs
        self._has_given_up = False
        self._release_s = min(RELEASE_S, stuck_s or RELEASE_S)
        self._since = 0.0  # when the current step began; 0 while the loop is idle
        self._thread = threading.Thread(target=self._run, name="vlmkit-loop", daemon=True)
        self._thread.start()
        work = watched_work(
            self._steps, self._encodings, lambda: self._since, lambda: self._thread.ident
        )
        self._watchdog = Watchdog(work, self._give_up, slow_s, stuck_s)

    # Called from any thread.

    @property
    def stats(self) -> LoopStats:
        """Counters of what ran."""
        return self._steps.stats

    @property
    def is_alive(self) -> bool:
        """Whether the loop can still serve requests."""
        return self._inbox.failure is None and self._thread.is_alive()

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a slot."""
        return self._inbox.num_jobs + self._jobs.queue.num_waiting + self._scheduler.num_waiting

    @property
    def is_full(self) -> bool:
        """Whether the queue takes no more sequences."""
        return self.num_waiting >= self._scheduler.max_waiting

    @property
    def num_running(self) -> int:
        """Sequences that have a slot."""
        return self._scheduler.num_running

    @property
    def num_jobs(self) -> int:
        """Sequences that the loop knows of; zero when every request has ended."""
        return len(self._jobs)

    def on_failure(self, notify: Callable[[BaseException], None]) -> None:
        """Call a function with the reason when the loop fails, in its thread; here if it has."""
        self._inbox.on_failure(notify)

    def submit(self, jobs: list[Job]) -> None:
        """Enqueue the sequences of one request.

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
        if num_waiting + num_new <= most - most // RESERVE_DIVISOR:
            return
        account, queue = jobs[0].channel.account, self._jobs.queue
        num_own = self._inbox.num_jobs_of(account) + queue.num_waiting_of(account)
        num_accounts = queue.num_accounts + (not num_own)
        if not may_acquire(
            num_new, limit=most, used=num_waiting, own_used=num_own, num_tenants=num_accounts
        ):
            raise QueueFull("too many requests are waiting already", hint="try again later")

    def abort(self, channel: Channel) -> None:
        """End a request; its cache blocks are free after the current step."""
        self._inbox.abort(channel)

    def wake(self) -> None:
        """Let the loop look again: a slow reader has caught up, or an image was encoded."""
        self._inbox.wake()

    def drain(self, timeout_s: float) -> bool:
        """Take no new requests and wait for the present ones; return whether all ended in time."""
        return self._inbox.drain(lambda: not self._jobs, timeout_s)

    def close(self) -> None:
        """Abort every request and stop the thread.

        Raises:
            EngineFailed: the loop gave up work that still computes: its memory must not be freed.
        """
        self._inbox.close()
        while not (has_ended := self._has_ended(1.0)) and not self._has_given_up:
            continue
        has_ended = has_ended or self._has_ended(self._release_s)
        self._watchdog.stop()
        if not has_ended:
            raise EngineFailed("an engine that was given up still computes and keeps its memory")

    def _has_ended(self, timeout_s: float) -> bool:
        """Wait for the loop's and the encoder's threads; the caller may be one of them."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        return self._encodings.join(timeout_s)

    # The watchdog's thread.

    def _give_up(self, error: BaseException) -> None:
        """Fail every request; the stuck work goes on, since nothing can end a thread."""
        self._has_given_up = True
        watchers = self._inbox.fail(error)
        self._inbox.end(self._jobs.add)
        self._jobs.fail_channels(partial(engine_failed, error), Wakeups())
        for notify in watchers:
            _notify(notify, error)

    # The loop's own thread.

    def _run(self) -> None:
        try:
            while self._serve_inbox():
                self._steps.run()
            if self._inbox.failure is None:
                self._inbox.end(self._jobs.add)
                self._jobs.abort_all()
            else:  # the watchdog gave up and has failed every request
                self._jobs.fail_all(partial(engine_failed, self._inbox.failure))
        except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
            self._fail(error)
        finally:
            self._since, self._steps.items = 0.0, ()
            self._steps.overlap.forget()
            self._encodings.stop()
            self._inbox.wake()  # for threads that wait until nothing runs

    def _fail(self, error: BaseException) -> None:
        """Fail every request, whatever else goes wrong on the way, such as a lack of memory."""
        part = faulty_component(error, self._parts)
        who = "the engine" if part is None else self._names.of(part)
        _attempt(partial(log.critical, FAILED, who, exc_info=error))
        _attempt(partial(traceback.clear_frames, error.__traceback__))  # which hold a step's arrays
        watchers = self._inbox.fail(error)
        _attempt(partial(self._inbox.end, self._jobs.add))
        _attempt(partial(self._jobs.fail_all, partial(engine_failed, error, who)))
        self._encodings.stop()
        self._inbox.wake()
        for notify in watchers:  # last, since a watcher may close what this loop is part of
            _notify(notify, error)

    def _serve_inbox(self) -> bool:
        """Do what other threads asked for; wait while there is nothing to run."""
        self._jobs.wakeups.flush()
        self._steps.report_cache_changes()
        self._since = 0.0
        self._wait()
        self._since = time.perf_counter()
        self._steps.is_stuck = False
        batch = self._inbox.take(self._jobs.add)
        if batch is None:
            return False
        self._jobs.accept(batch.new)
        if batch.aborted:
            self._jobs.abort(batch.aborted)
        self._jobs.resume_held()
        self._steps.take_features()
        self._jobs.wakeups.flush()  # accepted and refused requests must not wait for the step
        return True

    def _wait(self) -> None:
        """Wait for work; after a moment, return freed memory to the operating system."""
        if not self._inbox.wait(self._can_run, IDLE_S):
            heap.trim()
            self._inbox.wait(self._can_run)

    def _can_run(self) -> bool:
        if self._steps.overlap.has_started:
            return True
        return not self._steps.is_stuck and self._jobs.can_run


def _notify(watcher: Callable[[BaseException], None], failure: BaseException) -> None:
    try:
        watcher(failure)
    except Exception:
        log.exception("a watcher of the engine loop failed")


def _attempt(do: Callable[[], object]) -> None:
    """Do one of several things, none of which may keep the others from being done."""
    try:
        do()
    except Exception:
        log.exception("the end of the engine loop failed in part")
