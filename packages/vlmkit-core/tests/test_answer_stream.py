"""The stream of an answer that comes from elsewhere, filled and read by several threads."""

import asyncio
import gc
import threading
import time

import pytest
from hypothesis import given, strategies as st

from vlmkit.errors import EngineError
from vlmkit.kit.answer_stream import AnswerBuffer, AnswerReader
from vlmkit.types.completion import Chunk
from vlmkit.types.delta import TextDelta
from vlmkit.types.sample import Sample


class Made:
    """A buffer with its reader, and what it reported."""

    def __init__(self, num_choices: int = 1, max_unread: int = 4) -> None:
        self.aborted: list[str] = []
        self.caught_up = threading.Event()
        self.buffer = AnswerBuffer(
            (1, 2, 3),
            num_choices,
            max_unread=max_unread,
            began=time.perf_counter() - 1.0,
            on_abort=lambda: self.aborted.append("aborted"),
            on_caught_up=self.caught_up.set,
        )
        self.reader = AnswerReader(self.buffer)


def chunk(text: str, index: int = 0, reason: str | None = None) -> Chunk:
    samples = tuple(Sample(ord(letter)) for letter in text)
    return Chunk(index, (TextDelta(text),) if text else (), samples, reason)  # type: ignore[arg-type]


WAYS = {
    "iteration": lambda reader: [part.text for part in reader],
    "async iteration": lambda reader: asyncio.run(_each(reader)),
    "next_chunks": lambda reader: asyncio.run(_lots(reader)),
    "result": lambda reader: [reader.result().text],
    "aresult": lambda reader: [asyncio.run(reader.aresult()).text],
}


async def _each(reader: AnswerReader) -> list[str]:
    return [part.text async for part in reader]


async def _lots(reader: AnswerReader) -> list[str]:
    found: list[str] = []
    while lot := await reader.next_chunks():
        found += [part.text for part in lot]
    return found


def filled(made: Made, texts: list[str], error: EngineError | None = None) -> threading.Thread:
    """Fill a buffer in a thread that pauses as a producer should."""

    def fill() -> None:
        for text in texts:
            while made.buffer.is_behind:
                made.caught_up.wait()
                made.caught_up.clear()
            made.buffer.put(chunk(text))
        if error is None:
            made.buffer.put(chunk("", reason="stop"))
        else:
            made.buffer.fail(error)

    thread = threading.Thread(target=fill)
    thread.start()
    return thread


@pytest.mark.parametrize("way", WAYS)
@given(texts=st.lists(st.text("abc", min_size=1, max_size=3), max_size=30))
def test_every_reader_gets_everything_in_order(way: str, texts: list[str]) -> None:
    made = Made()
    thread = filled(made, texts)
    assert "".join(WAYS[way](made.reader)) == "".join(texts)
    thread.join()
    assert made.reader.reasons == ("stop",)
    assert made.reader.usage.completion_tokens == len("".join(texts))
    assert not made.aborted


@pytest.mark.parametrize("way", WAYS)
@given(texts=st.lists(st.text("abc", min_size=1, max_size=3), max_size=9))
def test_every_reader_gets_the_error_after_what_came_before(way: str, texts: list[str]) -> None:
    made = Made()
    thread = filled(made, texts, EngineError("it broke"))
    with pytest.raises(EngineError, match="it broke"):
        WAYS[way](made.reader)
    thread.join()
    assert not made.aborted


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20),
)
def test_each_choice_ends_exactly_once(num_choices: int, events: list[tuple[int, bool]]) -> None:
    made = Made(num_choices, max_unread=1000)
    open_choices = set(range(num_choices))
    for index, is_last in events:
        done = not open_choices
        if index in open_choices or done:
            made.buffer.put(chunk("x", index, "length" if is_last else None))
            if is_last and not done:
                open_choices.discard(index)
        else:
            with pytest.raises(EngineError, match="has ended or was not requested"):
                made.buffer.put(chunk("x", index))
    num_left = len(open_choices)
    made.reader.abort()
    made.reader.abort()
    completion = made.reader.result()
    assert len(made.reader.reasons) == num_choices
    assert [c.finish_reason for c in completion.choices].count("abort") == num_left
    assert made.aborted == (["aborted"] if num_left else [])
    assert completion.usage.completion_tokens == sum(len(c.samples) for c in completion.choices)


def test_dropping_the_reader_aborts_and_keeps_nothing() -> None:
    made = Made()
    made.buffer.put(chunk("abc"))
    del made.reader
    gc.collect()
    assert made.aborted == ["aborted"]
    assert made.buffer.is_done


def test_a_reader_that_stops_early_aborts() -> None:
    made = Made()
    made.buffer.put(chunk("abc"))
    for _ in made.reader:
        break
    gc.collect()
    assert made.aborted == ["aborted"]


def test_a_producer_is_told_when_a_slow_reader_has_caught_up() -> None:
    made = Made(max_unread=2)
    made.buffer.put(chunk("a"))
    assert not made.buffer.is_behind
    made.buffer.put(chunk("b"))
    assert made.buffer.is_behind
    assert made.buffer.take() is not None
    assert made.caught_up.is_set()
    assert not made.buffer.is_behind


def test_a_reader_of_the_whole_answer_wakes_at_half_the_bound_and_at_the_end() -> None:
    made, lots = Made(max_unread=8), list[int]()
    take = made.buffer.take

    def taken() -> list[Chunk] | None:
        found = take()
        lots.append(len(found or ()))
        return found

    async def fill() -> str:
        made.buffer.take = taken  # type: ignore[method-assign]
        reading = asyncio.ensure_future(made.reader.aresult())
        for letter in "abcdefghij":
            made.buffer.put(chunk(letter))
            for _ in range(5):
                await asyncio.sleep(0)
        made.buffer.put(chunk("", reason="stop"))
        return (await reading).text

    assert asyncio.run(fill()) == "abcdefghij"
    assert lots == [4, 4, 3, 0]


def test_only_one_reader_waits() -> None:
    made = Made()

    async def read_twice() -> None:
        first = asyncio.create_task(made.reader.next_chunks())
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="one reader at a time"):
            await made.reader.next_chunks()
        made.buffer.put(chunk("a"))
        assert [part.text for part in await first] == ["a"]

    asyncio.run(read_twice())


def test_timings_cover_the_stages() -> None:
    made = Made()
    made.buffer.start()
    made.buffer.put(chunk("a"))
    made.buffer.put(chunk("", reason="stop"))
    timings = made.reader.timings
    assert timings.prompt_s >= 1.0
    assert min(timings.queue_s, timings.first_token_s, timings.decode_s) >= 0
    assert timings.began_s <= time.time() - 1.0
    assert made.reader.prompt_token_ids == (1, 2, 3)
    assert made.reader.usage.prompt_tokens == 3


def test_a_reader_in_a_closed_event_loop_does_not_harm_the_producer() -> None:
    made = Made()
    loop = asyncio.new_event_loop()
    task = loop.create_task(made.reader.next_chunks())
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    made.buffer.put(chunk("a"))
    assert [part.text for part in made.buffer.take() or ()] == ["a"]
