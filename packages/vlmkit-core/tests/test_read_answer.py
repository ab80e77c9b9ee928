"""Streams that begin again: the reader gets each part once, however it comes."""

import pytest
from hypothesis import given, strategies as st

from vlmkit.running.fleet.read_answer import OtherAnswerError, ReadAnswer
from vlmkit.types.completion import Chunk
from vlmkit.types.delta import (
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    reasoning_of,
    text_of,
    tool_calls_of,
)
from vlmkit.types.sample import Sample

DELTAS = st.lists(
    st.one_of(
        st.builds(TextDelta, st.text("ab", min_size=1, max_size=4)),
        st.builds(ReasoningDelta, st.text("cd", min_size=1, max_size=4)),
        st.builds(ToolCallDelta, st.integers(0, 1), arguments=st.text("{}", min_size=1)),
    ),
    max_size=12,
)
TOKENS = st.lists(st.integers(0, 9), max_size=12)
ANSWERS = st.lists(st.tuples(TOKENS, DELTAS), min_size=1, max_size=3)


def whole(deltas):
    calls = [(call.name, call.arguments) for call in tool_calls_of(deltas)]
    return text_of(deltas), reasoning_of(deltas), calls


def halves(delta, cut):
    """Return a delta in two parts, if it has text to cut."""
    text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
    if not 0 < cut < len(text):
        return [delta]
    if isinstance(delta, ToolCallDelta):
        first = ToolCallDelta(delta.index, delta.id, delta.name, text[:cut])
        return [first, ToolCallDelta(delta.index, arguments=text[cut:])]
    return [type(delta)(text[:cut]), type(delta)(text[cut:])]


def named(draw, deltas):
    """Return deltas with an id and a name in the first one of each call."""
    seen = set()
    for delta in deltas:
        if not isinstance(delta, ToolCallDelta) or delta.index in seen:
            yield delta
            continue
        seen.add(delta.index)
        number = str(draw(st.integers(0, 10**9)))  # every worker makes ids of its own
        yield ToolCallDelta(delta.index, number, f"f{delta.index}", delta.arguments)


@st.composite
def streams(draw, answers):
    """Return chunks of answers, in some order and in pieces of some sizes."""
    queues = []
    for index, (token_ids, deltas) in enumerate(answers):
        pieces = [
            piece
            for delta in named(draw, deltas)
            for piece in halves(delta, draw(st.integers(0, 3)))
        ]
        tokens, chunks = [Sample(token_id) for token_id in token_ids], []
        while tokens or pieces:
            num, more = draw(st.integers(0, 3)), draw(st.integers(0, 2))
            chunks.append(Chunk(index, tuple(pieces[:more]), tuple(tokens[:num])))
            del tokens[:num], pieces[:more]
        chunks.append(Chunk(index, finish_reason="stop"))
        queues.append(chunks)
    mixed = []
    while queues := [queue for queue in queues if queue]:
        mixed.append(draw(st.sampled_from(queues)).pop(0))
    return mixed


@given(st.data(), ANSWERS)
def test_a_reader_gets_each_part_once_although_streams_begin_again(data, answers):
    read, got = ReadAnswer(), []
    for _ in range(data.draw(st.integers(0, 2))):
        begun = data.draw(streams(answers))
        got += read.new(begun[: data.draw(st.integers(0, len(begun)))])
        read.begin_again()
    for chunk in data.draw(streams(answers)):
        got += read.new([chunk])
    for index, (tokens, deltas) in enumerate(answers):
        mine = [chunk for chunk in got if chunk.index == index]
        assert [sample.token_id for chunk in mine for sample in chunk.samples] == tokens
        found = [delta for chunk in mine for delta in chunk.deltas]
        calls = {delta.index for delta in deltas if isinstance(delta, ToolCallDelta)}
        expected = [*(ToolCallDelta(each, "", f"f{each}") for each in sorted(calls)), *deltas]
        assert whole(found) == whole(expected)
        ids = [d.index for d in found if isinstance(d, ToolCallDelta) and d.id]
        assert sorted(ids) == sorted(calls)
        assert [chunk.finish_reason for chunk in mine if chunk.finish_reason] == ["stop"]


def test_new_tokens_may_come_before_known_text():
    """The first worker showed text at once that the second one holds back for a token."""
    read = ReadAnswer()
    read.new([Chunk(0, (TextDelta("ab"),), (Sample(1),))])
    read.begin_again()
    got = read.new(
        [Chunk(0, (), (Sample(1), Sample(2))), Chunk(0, (TextDelta("abc"),), (Sample(3),))]
    )
    assert [sample.token_id for chunk in got for sample in chunk.samples] == [2, 3]
    assert text_of(delta for chunk in got for delta in chunk.deltas) == "c"


@pytest.mark.parametrize(
    "other",
    [
        Chunk(0, (TextDelta("ab"),), (Sample(1), Sample(3))),
        Chunk(0, (TextDelta("ac"),), (Sample(1), Sample(2))),
        Chunk(0, (TextDelta("ab"), ToolCallDelta(0, "i", "g")), (Sample(1), Sample(2))),
    ],
)
def test_another_answer_is_an_error(other):
    read = ReadAnswer()
    read.new([Chunk(0, (TextDelta("ab"), ToolCallDelta(0, "i", "f")), (Sample(1), Sample(2)))])
    read.begin_again()
    with pytest.raises(OtherAnswerError, match="differs"):
        read.new([other])
