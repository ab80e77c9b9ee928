"""The structure of a body is counted correctly, whatever its strings contain."""

import json

import pytest
from hypothesis import example, given, strategies as st

from vlmkit.errors import RequestError
from vlmkit_server.wire import structure

JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='"\\,:{}[] aé\0'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='"\\,:{[a'), inner),
)


def counted(value):
    """Return how many objects, lists and keys a value has, and how many commas its JSON."""
    if isinstance(value, dict | list):
        held = value.values() if isinstance(value, dict) else value
        inner = [counted(each) for each in held]
        num_keys = len(value) if isinstance(value, dict) else 0
        return (
            1 + num_keys + sum(nodes for nodes, _ in inner),
            max(0, len(value) - 1) + sum(commas for _, commas in inner),
        )
    return 0, 0


@given(JSON, st.booleans(), st.integers(1, 9))
@example(["\\", '\\"', '"'], True, 2)
def test_structure_within_strings_is_not_counted(value, escapes, piece_bytes):
    text = json.dumps(value, ensure_ascii=escapes).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "PIECE_BYTES", piece_bytes)
        outside = b"".join(structure._outside(text))
    nodes = sum(outside.count(mark) for mark in (b"{", b"[", b":"))
    assert (nodes, outside.count(b",")) == counted(value)


@pytest.mark.parametrize("item", [b"[]", b"{}", b'{"a":1}'])
def test_a_body_with_one_node_over_the_limit_is_refused(item):
    num_each = item.count(b"{") + item.count(b"[") + item.count(b":")
    num = (structure.MAX_NODES - 1) // num_each
    body = b"[" + (item + b",") * (num - 1) + item + b"]"
    structure.check_structure(body)
    with pytest.raises(RequestError, match="objects, lists and keys") as caught:
        structure.check_structure(body[:-1] + b"," + item + b",[]]")
    assert caught.value.code == "body_too_complex"


@pytest.mark.parametrize("piece_bytes", [4000, structure.PIECE_BYTES])
@pytest.mark.parametrize(
    ("item", "max_num", "problem"),
    [
        (b"1e308", structure.MAX_POWERS, "numbers with an exponent"),
        (b"-2.5E-320", structure.MAX_POWERS, "numbers with an exponent"),
        (b"4503599627370497.5", structure.MAX_LONG, "numbers of 16 digits"),
        (b"9" * structure.MAX_DIGITS, None, None),
        (b"9" * (structure.MAX_DIGITS + 1), 0, "digits in a number"),
        (b"0." + b"9" * 10**4, 0, "digits in a number"),
    ],
)
def test_slow_to_parse_numbers_are_limited(monkeypatch, item, max_num, problem, piece_bytes):
    monkeypatch.setattr(structure, "PIECE_BYTES", piece_bytes)
    num = 3000 if max_num is None else max_num
    structure.check_structure(b"[" + b",".join([item] * num) + b"]")
    structure.check_structure(b"[" + b",".join([b'"%b"' % item] * min(3000, num + 1)) + b"]")
    if problem is not None:
        pieces = b",".join([item] * (num + 1) + [b"1"] * 1000)
        with pytest.raises(RequestError, match=problem) as caught:
            structure.check_structure(b"[" + pieces + b"]")
        assert caught.value.code == "body_too_complex"


def test_digits_within_image_data_are_not_counted_as_numbers(monkeypatch):
    monkeypatch.setattr(structure, "_outside", None)  # fails if the exact count is needed
    structure.check_structure(b'{"url":"' + b"0e1E" * 10**6 + b'"}')


def test_strings_of_brackets_are_accepted():
    structure.check_structure(json.dumps(["[{:," * structure.MAX_NODES, '"' * 1000]).encode())


def test_a_body_is_light_if_it_is_short_or_has_little_structure():
    assert structure.is_light(b'{"a":"' + b"x" * 100_000 + b'"}')
    assert not structure.is_light(b"[" * 5000)
    assert not structure.is_light(b" " * (structure.LIGHT_BYTES + 1))
