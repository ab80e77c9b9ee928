"""Times of another process, by the clock of this one: the clocks of two machines may differ.

It covers the times that a process reports of a request. Durations need no change.
"""

import time
from dataclasses import replace

from vlmkit.types.completion import Timings
from vlmkit.types.stage import ImageTimings, Stage


def offset_of(timings: Timings, elapsed_s: float) -> float:
    """Return what to add to the times of a process so that they are by the clock here.

    A process prepares a prompt after the request was sent, and before its acceptance arrives. The
    offset is the smallest one with which that is so; it is 0 if the two clocks agree.

    Args:
        timings: what the process reports with its acceptance, which has just arrived.
        elapsed_s: the time since the request was sent.
    """
    now_s = time.time()
    sent_s = now_s - elapsed_s
    if timings.began_s < sent_s:
        return sent_s - timings.began_s
    return min(0.0, now_s - timings.prompt_s - timings.began_s)


def shifted(timings: Timings, by_s: float) -> Timings:
    """Return timings whose times are later by so many seconds.

    The caller has fetched the images, so the times of fetching are by its clock already.
    """
    if not by_s:
        return timings
    images = tuple(_shifted_image(image, by_s) for image in timings.images)
    return replace(timings, began_s=timings.began_s + by_s, images=images)


def _shifted_image(image: ImageTimings, by_s: float) -> ImageTimings:
    return replace(
        image,
        decode=_shifted_stage(image.decode, by_s),
        preprocess=_shifted_stage(image.preprocess, by_s),
        encode=_shifted_stage(image.encode, by_s),
    )


def _shifted_stage(stage: Stage, by_s: float) -> Stage:
    return stage._replace(began_s=stage.began_s + by_s) if stage.began_s else stage
