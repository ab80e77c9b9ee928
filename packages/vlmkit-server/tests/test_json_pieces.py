"""JSON that is encoded in pieces equals JSON that is encoded at once."""

import json

from hypothesis import given, strategies as st
from running_server import chat, eventually, running, scripted

from vlmkit_server.exchange import full_response, json_pieces

LISTS = st.lists(st.lists(st.integers() | st.text() | st.none()))


@given(LISTS, st.integers(1, 4), st.text())
def test_placeholders_are_filled_in_order(lists, num_each, text):
    value = [text, *({text: json_pieces.HOLE} for _ in lists)]
    written = json_pieces.filled(value, [json_pieces.listed(each, num_each) for each in lists])
    assert json.loads(b"".join(written)) == [text, *({text: each} for each in lists)]


def test_drained_items_are_freed():
    items = list(range(5))
    taken = json_pieces.drained(items)
    assert (next(taken), next(taken), len(items)) == (0, 1, 3)
    assert [*taken, *items] == [2, 3, 4]


def test_pieces_are_gathered_up_to_a_size_without_loss():
    source = iter([b"x" * (json_pieces.PIECE_BYTES - 1), b"y", b"z"])
    assert len(json_pieces.gathered(source)) == json_pieces.PIECE_BYTES
    assert (json_pieces.gathered(source), json_pieces.gathered(source)) == (b"z", b"")


def test_encoding_starts_only_when_the_first_piece_is_read():
    written = json_pieces.deferred(lambda: [json.dumps(1 / 0).encode()])
    assert iter(written) is written


def test_encoding_stops_while_the_client_does_not_read(monkeypatch):
    written = []

    def record(source):
        written.append(json_pieces.gathered(source))
        return written[-1]

    monkeypatch.setattr(full_response, "gathered", record)
    body = chat(scripted(text="hello ", tokens=2000), logprobs=True, top_logprobs=20, n=4)
    with running() as server:
        assert len(server.post(body | {"max_tokens": 2000}).content) > 8 * json_pieces.PIECE_BYTES
        num_in_all, written[:] = len(written), []
        reader = server.connect(body | {"max_tokens": 2000}, receive_bytes=4096)
        assert b" 200 " in reader.recv(4096)
        reader.close()
        assert eventually(server.is_idle)
        assert len(written) < num_in_all / 2
