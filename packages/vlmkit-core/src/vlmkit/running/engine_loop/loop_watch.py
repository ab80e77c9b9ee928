"""What the watchdog watches in an engine loop: its steps and its encodings.

The descriptions hold sizes and request ids, never what a client sent.
"""

from collections.abc import Callable, Iterable

from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.engine_loop.encoder_queue import EncoderQueue
from vlmkit.running.engine_loop.step_runner import StepRunner
from vlmkit.running.faults.watchdog import MonitoredTask, listed


def watched_work(
    steps: StepRunner,
    encodings: EncoderQueue,
    since: Callable[[], float],
    thread: Callable[[], int | None],
) -> tuple[MonitoredTask, ...]:
    """Return what may take too long.

    Args:
        steps: the loop's steps.
        encodings: the media that are encoded beside them.
        since: returns when the current step began, by ``perf_counter``; 0 if the loop is idle.
        thread: returns the identifier of the loop's thread.
    """
    stats = steps.stats

    def request_ids(sequences: Iterable[Sequence]) -> str:
        jobs = map(steps.jobs.get, sequences)
        return listed({job.channel.facts.id for job in jobs if job is not None})

    def described_step() -> str:
        items = steps.items
        num_tokens = sum(item.num_tokens for item in items)
        ids = request_ids(item.sequence for item in items)
        return f"sequences: {len(items)}, tokens: {num_tokens}, requests: {ids}"

    def described_encoding() -> str:
        slots = encodings.present
        num_tokens = sum(slot.num_features for slot in slots.values())
        ids = request_ids(encodings.waiting(slots))
        return f"media: {len(slots)}, tokens: {num_tokens}, requests: {ids}"

    def count_step() -> None:
        stats.num_slow_steps += 1

    def count_encoding() -> None:
        stats.num_slow_encodings += 1

    return (
        MonitoredTask("a step", since, described_step, thread, count_step),
        MonitoredTask(
            "an encoding",
            lambda: encodings.since,
            described_encoding,
            lambda: encodings.ident,
            count_encoding,
        ),
    )
