"""The timings of an answer in the ``Server-Timing`` header, in milliseconds.

It has sums over all images, and each of the first images by itself: clients limit the size of
headers.
"""

from collections.abc import Iterator

from vlmkit.types.completion import Timings
from vlmkit.types.stage import ImageTimings, Stage

MAX_IMAGES = 16
_STAGES = ("fetch", "decode", "preprocess", "encode")


def server_timing(images_s: float, timings: Timings) -> str:
    """Return the timings of an answer that has ended."""
    spans = {
        "queue": timings.queue_s,
        "first_token": timings.first_token_s,
        "decode": timings.decode_s,
    }
    return ", ".join([*_preparation(images_s, timings), *_written(spans), *_of_images(timings)])


def timing_before(images_s: float, timings: Timings) -> str:
    """Return the timings that are known before an answer begins."""
    return ", ".join([*_preparation(images_s, timings), *_of_images(timings)])


def _preparation(images_s: float, timings: Timings) -> Iterator[str]:
    yield from _written({"images": images_s, "prompt": timings.prompt_s})


def _of_images(timings: Timings) -> Iterator[str]:
    """Yield the stages that occurred: sums over all images, then each of the first ones."""
    for stage in _STAGES:
        total_s = sum(_stage(image, stage).took_s for image in timings.images)
        if total_s:
            yield from _written({f"image_{stage}": total_s})
    for number, image in enumerate(timings.images[:MAX_IMAGES]):
        durations_s = {f"image{number}_{stage}": _stage(image, stage).took_s for stage in _STAGES}
        yield from _written({name: took_s for name, took_s in durations_s.items() if took_s})


def _stage(image: ImageTimings, name: str) -> Stage:
    found: Stage = getattr(image, name)
    return found


def _written(spans: dict[str, float]) -> Iterator[str]:
    for name, span_s in spans.items():
        yield f"{name};dur={span_s * 1e3:.1f}"
