"""Image rows, positions and masks of prompts, against a direct implementation of the rules."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st

from vlmkit.errors import EngineError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot, Prompt, Span
from vlmkit_onnx.prompts.families import Family, Visibility
from vlmkit_onnx.prompts.prompt_inputs import merge, read_prompt, visible, visible_to_last

IMAGE, TEXT, HIDDEN = 7, 1, 4


def prompt(layout):
    """Return a prompt of a pattern such as ``..II.I``, in which each run of I is one image."""
    ids = tuple(IMAGE if mark == "I" else TEXT for mark in layout)
    slots, start = [], None
    for index, mark in enumerate([*layout, "."]):
        if mark == "I" and start is None:
            start = index
        elif mark != "I" and start is not None:
            slots.append(MediaSlot(start, index, b"", {}, index - start))
            start = None
    return Prompt(ids, tuple(slots))


def features(inputs, number):
    count = int((inputs.image == number).sum())
    rows = 100 * (number + 1) + np.arange(count, dtype=np.float32)
    return MediaFeatures(count, np.repeat(rows[:, None], HIDDEN, 1))


def sees(layout, visibility, window, query, key):
    """Return whether one token attends to another, by the written rules."""
    is_same = False
    if max(query, key) < len(layout):
        between = layout[min(query, key) : max(query, key) + 1]
        is_prefix = visibility == "prefix" and "I" in layout
        is_block = visibility.endswith("image_blocks") and set(between) == {"I"}
        is_same = is_prefix or is_block
    is_near = window is None or key > query - window
    if visibility in ("prefix", "wide_image_blocks"):
        return is_same or (key <= query and is_near)
    if visibility == "near_image_blocks" and window is None:
        return key <= query
    return is_near and (is_same or key <= query)


layouts = st.text("I.", min_size=1, max_size=14)


@given(
    layouts,
    st.sampled_from(get_args(Visibility)),
    st.none() | st.integers(1, 6),
    st.data(),
)
def test_a_chunk_attends_by_the_rules_of_its_layout(layout, visibility, window, data):
    inputs = read_prompt(prompt(layout), Family(IMAGE, visibility))
    stop = data.draw(st.integers(1, len(layout) + 3))
    start = data.draw(st.integers(0, stop - 1))
    whole, near = visible(inputs, start, stop, window)
    assert whole.shape == near.shape == (1, 1, stop - start, stop)
    for bias, width in ((whole, None), (near, window)):
        expected = [
            [sees(layout, visibility, width, q, k) for k in range(stop)] for q in range(start, stop)
        ]
        assert (bias[0, 0] == 0).tolist() == expected
        assert np.isneginf(bias[bias != 0]).all()


@pytest.mark.parametrize(
    ("visibility", "expected"),
    [
        ("image_blocks", ["III", "III", ".II"]),
        ("near_image_blocks", ["III", "III", ".II"]),
        ("wide_image_blocks", ["III", "III", "III"]),
        ("prefix", ["III", "III", "III"]),
    ],
)
def test_a_window_cuts_the_block_of_an_image_and_no_prefix(visibility, expected):
    inputs = read_prompt(prompt("III"), Family(IMAGE, visibility))
    _, near = visible(inputs, 0, 3, 2)
    assert ["".join(np.where(row == 0, "I", ".")) for row in near[0, 0]] == expected


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.none() | st.integers(1, 6))
def test_a_new_token_attends_up_to_its_own_row(starts, window):
    whole, near = visible_to_last(np.array(starts, np.int32), window)
    for row, start in enumerate(starts):
        for bias, width in ((whole, None), (near, window)):
            expected = [sees("", "causal", width, start, k) for k in range(max(starts) + 1)]
            assert (bias[row, 0, 0] == 0).tolist() == expected


@given(layouts, st.sampled_from(get_args(Visibility)))
def test_spans_are_bidirectional_ranges(layout, visibility):
    inputs = read_prompt(prompt(layout), Family(IMAGE, visibility))
    _, near = visible(inputs, 0, len(layout), len(layout))
    inside = {(q, k) for q, k in zip(*np.nonzero(near[0, 0] == 0), strict=True) if k > q}
    covered = {
        (q, k) for span in inputs.spans() for q in range(*span) for k in range(q + 1, span.stop)
    }
    assert inside == covered


def test_a_text_prompt_has_no_atomic_spans():
    assert [
        read_prompt(prompt(layout), Family(IMAGE, "prefix")).spans() for layout in ("...", "I..")
    ] == [(), (Span(0, 3),)]


@given(layouts, st.data())
def test_every_placeholder_gets_its_own_row_however_the_prompt_is_cut(layout, data):
    inputs = read_prompt(prompt(layout), Family(IMAGE))
    made = {number: features(inputs, number) for number in range(inputs.image.max() + 1)}
    whole = np.zeros((len(layout), HIDDEN), np.float32)
    merge(inputs, whole, 0, made, None)
    cut = data.draw(st.integers(0, len(layout)))
    head, tail = whole[:cut] * 0, whole[cut:] * 0
    merge(inputs, head, 0, made, None)
    merge(inputs, tail, cut, made, None)
    assert np.array_equal(np.concatenate([head, tail]), whole)
    assert [row[0] > 0 for row in whole] == [mark == "I" for mark in layout]
    assert len(set(whole[whole[:, 0] > 0, 0])) == layout.count("I")


def test_deepstack_rows_go_where_the_image_is():
    inputs = read_prompt(prompt(".II."), Family(IMAGE))
    plain = features(inputs, 0)
    extra = {"deepstack.0": plain.embeddings + 1, "deepstack.1": plain.embeddings + 2}
    levels = np.zeros((2, 4, HIDDEN), np.float32)
    merge(
        inputs, np.zeros((4, HIDDEN), np.float32), 0,
        {0: MediaFeatures(2, plain.embeddings, extra)}, levels,
    )  # fmt: skip
    assert levels[:, :, 0].tolist() == [[0, 101, 102, 0], [0, 102, 103, 0]]


def test_missing_features_are_an_error_and_not_zeros():
    inputs = read_prompt(prompt(".II."), Family(IMAGE))
    rows = np.zeros((4, HIDDEN), np.float32)
    with pytest.raises(EngineError, match="features of image 0 of a prompt are not there"):
        merge(inputs, rows, 0, {}, None)
    with pytest.raises(EngineError, match=r"have no 'deepstack\.0'"):
        merge(inputs, rows, 0, {0: features(inputs, 0)}, np.zeros((1, 4, HIDDEN), np.float32))
    wide = MediaFeatures(2, np.zeros((2, HIDDEN + 1), np.float32))
    with pytest.raises(EngineError, match="the decoder takes rows of 4"):
        merge(inputs, rows, 0, {0: wide}, None)


def test_an_image_with_another_number_of_placeholders_than_rows_is_an_error():
    slot = MediaSlot(0, 3, b"", {}, 2)
    with pytest.raises(EngineError, match="image 0 has 3 places in its prompt"):
        read_prompt(Prompt((IMAGE,) * 3, (slot,)), Family(IMAGE))


def test_answers_have_positions_with_an_offset():
    def rule(_):
        from vlmkit_onnx.prompts.families import Positions

        return Positions(np.array([[0, 1, 1], [0, 1, 2], [0, 1, 1]]), -1)

    inputs = read_prompt(prompt(".II"), Family(IMAGE, rule=rule))
    found = inputs.positions_of(1, 6, 3)[:, 0]
    assert found.tolist() == [[1, 1, 2, 3, 4], [1, 2, 2, 3, 4], [1, 1, 2, 3, 4]]
