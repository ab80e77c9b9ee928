"""Streams of background responses: live, replayed and resumed."""

import asyncio
import json
import re

import openai
import pytest
from hypothesis import given, strategies as st
from responses_client import PATH, body, events
from running_server import eventually, running, scripted

from vlmkit.errors import RequestError
from vlmkit_server.apis.openai_responses.event_log import EventLog
from vlmkit_server.settings.server import ResponsesSettings

SAID = scripted(text="né 🙂 and more", reasoning="hm")
SLOW = scripted(text="x" * 4000, latency_s=0.01)


def parsed_events(text):
    """Return the JSON of each event of a stream."""
    return [json.loads(event.rpartition("data: ")[2]) for event in text.split("\n\n") if event]


def background_events(server, said, **fields):
    """Return the events of a background response."""
    return list(
        server.client().responses.create(**body(said, **fields), background=True, stream=True)
    )


def replay(server, response_id, **query):
    """Replay a response with the same client's credentials."""
    mine = {"authorization": "Bearer none"}
    return server.get(f"{PATH}/{response_id}", params={"stream": "true"} | query, headers=mine)


def test_a_background_stream_has_the_events_of_any_other_stream(server):
    plain, own = events(server, SAID), events(server, SAID, background=True)
    assert [event.type for event in own] == [event.type for event in plain]
    assert own[-1].response.output_text == plain[-1].response.output_text == "né 🙂 and more"
    assert own[0].response.background is True
    assert server.get(f"{PATH}/{own[0].response.id}").json()["status"] == "completed"


def test_a_stream_is_replayed_from_any_event(server):
    client = server.client().responses
    first = background_events(server, SAID)
    response_id = first[0].response.id
    assert list(client.retrieve(response_id, stream=True)) == first
    for number in (0, 4, len(first) - 2):
        rest = list(client.retrieve(response_id, stream=True, starting_after=number))
        assert rest == first[number + 1 :]
    assert replay(server, response_id, starting_after=len(first) + 5).text == ""
    with client.stream(response_id=response_id, starting_after=3) as stream:
        assert next(iter(stream)).sequence_number == 4
        assert stream.get_final_response().output_text == "né 🙂 and more"


def test_event_sizes_are_obfuscated_on_request(server):
    received = background_events(server, SAID, stream_options={"include_obfuscation": True})
    assert any("obfuscation" in (event.model_extra or {}) for event in received)
    response_id = received[0].response.id
    assert "obfuscation" not in replay(server, response_id).text
    assert "obfuscation" in replay(server, response_id, include_obfuscation="true").text


def test_a_background_answer_continues_after_a_disconnect_and_can_be_resumed(server):
    client = server.client().responses
    prompt = scripted(text="x" * 200, latency_s=0.01)
    with client.create(**body(prompt), background=True, stream=True) as stream:
        received = [event for event, _ in zip(stream, range(6), strict=False)]
    response_id = received[0].response.id
    rest = list(client.retrieve(response_id, stream=True, starting_after=5))
    assert [event.sequence_number for event in received + rest] == list(range(6 + len(rest)))
    deltas = [
        event.delta for event in received + rest if event.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == rest[-1].response.output_text == "x" * 200


def test_several_clients_can_stream_one_background_answer(server, pool):
    client = server.client().responses
    response = client.create(**body(scripted(text="x" * 100, latency_s=0.01)), background=True)
    texts = list(pool.map(lambda _: replay(server, response.id).text, range(4)))
    assert len(set(texts)) == 1
    numbers = [event["sequence_number"] for event in parsed_events(texts[0])]
    assert numbers == list(range(len(numbers)))
    assert (
        parsed_events(texts[0])[-1]["response"]["output"]
        == client.retrieve(response.id).to_dict()["output"]
    )
    assert eventually(server.is_idle)


@pytest.mark.parametrize("way", ["cancel", "delete"])
def test_a_replayed_stream_ends_with_the_cancellation(server, way):
    client = server.client().responses
    response = client.create(**body(SLOW), background=True)
    with client.retrieve(response.id, stream=True) as stream:
        next(iter(stream))
        getattr(client, way)(response.id)
        *_, last = stream
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert eventually(server.is_idle)
    if way == "cancel":
        assert client.retrieve(response.id).status == "cancelled"
        assert (
            parsed_events(replay(server, response.id).text)[-1]["sequence_number"]
            == last.sequence_number
        )


def test_a_failed_background_answer_is_reported_in_stream_and_lookup(server):
    *_, last = background_events(server, scripted(text="abcdef", fail_at_token=3))
    assert last.type == "response.failed"
    found = server.client().responses.retrieve(last.response.id)
    assert (found.status, found.error.code) == ("failed", "server_error")
    assert found.output == last.response.output
    with pytest.raises(openai.BadRequestError) as error:
        server.client().responses.create(**body("x"), previous_response_id=found.id)
    assert error.value.param == "previous_response_id"


def test_only_background_responses_are_replayed_and_only_to_their_owner(server):
    plain = server.client().responses.create(**body("x"))
    with pytest.raises(openai.BadRequestError) as error:
        server.client().responses.retrieve(plain.id, stream=True)
    assert error.value.param == "stream"
    mine = {"authorization": "Bearer mine"}
    answer = server.post(body("x", background=True), PATH, headers=mine).json()
    assert replay(server, answer["id"]).status_code == 404
    url = f"{PATH}/{answer['id']}"
    assert server.get(url, params={"stream": "true"}, headers=mine).status_code == 200


@pytest.mark.parametrize(
    ("query", "param"),
    [({"stream": "maybe"}, "stream"), ({"stream": "true", "starting_after": -1}, "starting_after"),
     ({"starting_after": 1}, "starting_after"), ({"starting_after": "x"}, "starting_after"),
     ({"stream": "true", "include_obfuscation": "2"}, "include_obfuscation")],
)  # fmt: skip
def test_an_invalid_query_is_refused(server, query, param):
    begun = server.post(body("x", background=True), PATH).json()
    answer = server.get(f"{PATH}/{begun['id']}", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_replayed_stream_counts_against_max_requests():
    with running(max_requests=2) as server:
        client = server.client().responses
        response = client.create(**body(SLOW), background=True)
        with client.retrieve(response.id, stream=True) as stream:
            next(iter(stream))
            refusal = replay(server, response.id)
            assert refusal.status_code == 429
            assert refusal.json()["error"]["code"] == "server_overloaded"
        client.cancel(response.id)
        assert eventually(server.is_idle)


def test_dropped_events_are_not_replayed_and_later_ones_are():
    with running(responses=ResponsesSettings(max_stored_bytes=160_000)) as server:
        client = server.client().responses
        response = client.create(**body(scripted(text="x" * 300)), background=True)
        assert eventually(lambda: client.retrieve(response.id).status == "completed")
        refusal = replay(server, response.id)
        assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "starting_after")
        first = int(re.search(r"number (\d+)", refusal.json()["error"]["message"])[1])
        assert first > 100
        rest = parsed_events(replay(server, response.id, starting_after=first - 1).text)
        assert [event["sequence_number"] for event in rest] == list(range(first, first + len(rest)))
        assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "x" * 300


# The event log itself.


@given(st.lists(st.lists(st.integers(1, 40), max_size=5), max_size=30), st.integers(1, 200))
def test_the_event_log_is_limited_and_replays_in_order(added, most):
    async def tried():
        log, events = EventLog(most), []
        for sizes in added:
            more = [b"%d:" % (len(events) + n) + b"x" * size for n, size in enumerate(sizes)]
            events += more
            log.add(b"".join(event + b"\n\n" for event in more))
            assert log.num_bytes <= most
        log.close()
        for number in range(-1, len(events) + 1):
            try:
                found = [each async for each in _all(log, number)]
            except RequestError:
                assert number + 1 < len(events)
            else:
                assert found == [event + b"\n\n" for event in events[number + 1 :]]
        kept = [event async for event in _all(log, len(events) - 1 - len(log._events))]
        assert sum(map(len, kept)) == log.num_bytes

    asyncio.run(tried())


async def _all(log, number):
    while found := await log.after(number):
        for event in found:
            yield event
        number += len(found)
