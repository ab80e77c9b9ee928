"""Requests that crash their process are refused after few crashes, and no others are."""

import random
import time

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import QueueFull, RequestQuarantined
from vlmkit.running.remote_runner.quarantine import MAX_SUSPECTS, QUARANTINE_S, Quarantine
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.request import Request


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def text(content: str, **other: object) -> Request:
    return Request(messages=[Message("user", [TextPart(content)])], **other)  # type: ignore[arg-type]


def with_picture(pixel: int) -> Request:
    import PIL.Image

    picture = Image.open(PIL.Image.new("RGB", (32, 32), (pixel, 0, 0)))
    return Request(messages=[Message("user", [ImagePart(picture), TextPart("what?")])])


def crash(quarantine: Quarantine, *requests: Request) -> None:
    quarantine.crash([(each, quarantine.enter(each)) for each in requests])


def test_a_second_crash_with_a_request_refuses_it_and_its_retries_of_any_id() -> None:
    quarantine = Quarantine()
    crash(quarantine, text("bad", id="a"), text("good"))
    crash(quarantine, text("bad", id="b"))

    with pytest.raises(RequestQuarantined):
        quarantine.enter(text("bad", id="c", trace="00-1", priority=3))
    assert quarantine.enter(text("new")) == b""


def test_a_system_clock_that_is_set_forward_ends_no_quarantine(monkeypatch) -> None:
    quarantine = Quarantine()
    crash(quarantine, text("bad"))
    crash(quarantine, text("bad"))
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 2 * QUARANTINE_S)

    with pytest.raises(RequestQuarantined):
        quarantine.enter(text("bad"))


@pytest.mark.parametrize(
    ("bad", "other"),
    [
        (text("bad"), text("bap")),
        (text("bad", tenant="a"), text("bad", tenant="b")),
        (with_picture(1), with_picture(2)),
    ],
    ids=["text", "tenant", "pixels"],
)
def test_requests_of_equal_size_are_not_confused(bad: Request, other: Request) -> None:
    quarantine = Quarantine()
    crash(quarantine, bad)
    crash(quarantine, bad)

    assert quarantine.enter(other) == b""
    with pytest.raises(RequestQuarantined):
        quarantine.enter(bad)


def test_an_answer_ends_the_suspicion() -> None:
    quarantine = Quarantine()
    for _ in range(5):
        crash(quarantine, text("unlucky"))
        ticket = quarantine.enter(text("unlucky"))
        assert ticket
        quarantine.leave(ticket, is_answered=True)

    assert quarantine.enter(text("unlucky")) == b""


def test_an_end_without_an_answer_does_not_end_the_suspicion() -> None:
    quarantine = Quarantine()
    crash(quarantine, text("bad"))
    quarantine.leave(quarantine.enter(text("bad")), is_answered=False)
    crash(quarantine, text("bad"))

    with pytest.raises(RequestQuarantined):
        quarantine.enter(text("bad"))


def test_requests_that_crashed_together_twice_are_tried_one_by_one() -> None:
    quarantine = Quarantine()
    crash(quarantine, text("bad"), text("good"))
    crash(quarantine, text("bad"), text("good"))

    ticket = quarantine.enter(text("good"))
    with pytest.raises(QueueFull) as caught:
        quarantine.enter(text("bad"))
    assert caught.value.retry_after_s == 1
    quarantine.leave(ticket, is_answered=True)
    crash(quarantine, text("bad"), text("new"))

    with pytest.raises(RequestQuarantined):
        quarantine.enter(text("bad"))
    quarantine.leave(quarantine.enter(text("new")), is_answered=True)


def test_the_quarantine_ends_after_an_hour() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    crash(quarantine, text("bad"))
    crash(quarantine, text("bad"))
    clock.now_s = QUARANTINE_S - 1
    with pytest.raises(RequestQuarantined):
        quarantine.enter(text("bad"))

    clock.now_s = QUARANTINE_S + 1
    assert quarantine.enter(text("bad")) == b""


def test_the_quarantine_ends_although_a_copy_was_in_progress_when_it_began() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    crash(quarantine, text("bad"))
    copy = quarantine.enter(text("bad"))
    crash(quarantine, text("bad"))
    quarantine.leave(copy, is_answered=True)
    with pytest.raises(RequestQuarantined):
        quarantine.enter(text("bad"))

    clock.now_s = QUARANTINE_S + 1
    assert quarantine.enter(text("bad")) == b""


def test_the_number_of_suspects_is_bounded_and_the_latest_are_kept() -> None:
    quarantine = Quarantine()
    crash(quarantine, *(text(str(number)) for number in range(MAX_SUSPECTS + 10)))

    assert quarantine.enter(text("9")) == b""
    assert quarantine.enter(text("10")) != b""


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), num=st.integers(1, 12), most_open=st.integers(1, 12))
def test_one_crashing_request_is_refused_after_three_crashes_and_no_other_ever(
    seed: int, num: int, most_open: int
) -> None:
    """Each request is retried until it is answered or refused, among others that are new."""
    chance = random.Random(seed)
    quarantine = Quarantine()
    waiting = {f"old {number}" for number in range(num)} | {"bad"}
    num_crashes = num_new = 0
    while "bad" in waiting:
        waiting |= {f"new {num_new}"}
        num_new += 1
        chosen = {"bad", *chance.sample(sorted(waiting), min(len(waiting), most_open))}
        opened = {}
        for name in chance.sample(sorted(chosen), len(chosen)):
            try:
                opened[name] = quarantine.enter(text(name))
            except QueueFull:
                pass
            except RequestQuarantined:
                assert name == "bad"
                waiting.remove(name)
        if "bad" in opened:
            num_crashes += 1
            quarantine.crash([(text(name), ticket) for name, ticket in opened.items()])
            continue
        for name, ticket in opened.items():
            if is_answered := chance.random() < 0.8:
                waiting.remove(name)
            quarantine.leave(ticket, is_answered=is_answered)
    assert num_crashes <= 3
