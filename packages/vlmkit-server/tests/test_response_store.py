"""Stored responses: continued, read, listed, deleted, cancelled, limited, separated by tenant."""

import contextlib

import openai
import pytest
from hypothesis import given, strategies as st
from openai.types.responses import ResponseItemList
from responses_client import PATH, body, checked, events, image, refused, text, user, whole
from running_server import (
    eventually,
    image_url,
    message_content,
    recorded_requests,
    running,
    scripted,
)

from vlmkit.errors import RequestError
from vlmkit_server.apis.openai_responses.event_log import EventLog
from vlmkit_server.apis.openai_responses.items import StoredItem
from vlmkit_server.apis.openai_responses.store import ResponseStore, Turn
from vlmkit_server.http.errors import Overloaded
from vlmkit_server.settings.server import ResponsesSettings

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
CALLS = [{"name": "look", "arguments": {}}]
SLOW = {"text": "x", "tokens": 2000, "latency_s": 0.05}


def stored(server, response_id, **headers):
    return server.get(f"{PATH}/{response_id}", headers=headers)


def conversation(requests):
    return [message_content(message) for message in requests[-1].messages]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_continues_from_a_stored_response(server, monkeypatch, stream):
    def ask(given, **fields):
        sent = {"tools": [TOOL], **fields}
        if stream:
            return events(server, given, **sent)[-1].response
        return whole(server, given, **sent)

    question = user([text(scripted(text="hm", reasoning="so", calls=CALLS)), image(image_url())])
    first = ask([question], instructions="be brief")
    call = first.output[-1]
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": [image(image_url())],
    }
    second = ask([result], previous_response_id=first.id)
    assert second.previous_response_id == first.id
    with recorded_requests(server, monkeypatch) as requests:
        ask("and?", previous_response_id=second.id)
        items = [question, *first.output, result, *second.output, user("and?")]
        ask([item if isinstance(item, dict) else item.model_dump() for item in items])
    gone_on, at_once = (
        [message_content(message) for message in each.messages] for each in requests
    )
    assert gone_on == at_once
    assert [role for role, *_ in gone_on] == ["user", "assistant", "tool", "assistant", "user"]


def test_the_official_client_can_continue_a_conversation(server):
    client = server.client().responses
    first = client.create(model="mock", input=scripted(text="four"))
    second = client.create(model="mock", input="why?", previous_response_id=first.id)
    assert second.output_text == "why?"
    assert second.usage.input_tokens > first.usage.input_tokens
    held = client.retrieve(first.id)
    assert (held.id, held.status, held.output) == (first.id, "completed", first.output)
    items = client.input_items.list(second.id, order="asc").data
    assert [item.type for item in items] == ["message", "message", "message"]
    assert [item.role for item in items] == ["user", "assistant", "user"]
    client.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(first.id)
    third = client.create(model="mock", input="so?", previous_response_id=second.id)
    assert third.output_text == "so?"


def test_token_counts_include_the_previous_response(server):
    first = whole(server, scripted(text="four"))
    asked_for = {"model": "mock", "input": "why?", "previous_response_id": first.id}
    counted = server.post(asked_for, f"{PATH}/input_tokens").json()["input_tokens"]
    assert counted == whole(server, "why?", previous_response_id=first.id).usage.input_tokens


def test_an_item_reference_is_replaced_by_the_stored_item(server, monkeypatch):
    first = whole(server, scripted(text="four", reasoning="hm"))
    thought, answer = first.output
    references = [{"type": "item_reference", "id": thought.id}, {"id": answer.id}]
    with recorded_requests(server, monkeypatch) as requests:
        second = whole(server, [user("a"), *references, user("b")])
        whole(server, "c", previous_response_id=second.id)
        referred = [message_content(message) for message in requests[0].messages]
        whole(server, [user("a"), *(item.model_dump() for item in first.output), user("b")])
    assert referred == conversation(requests)
    assert [message_content(message) for message in requests[1].messages][:3] == referred


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_with_store_false_is_not_found(server, stream):
    response = events(server, store=False)[-1].response if stream else whole(server, store=False)
    assert response.store is False
    assert stored(server, response.id).status_code == 404
    error = refused(server, previous_response_id=response.id)
    assert (error["code"], error["param"]) == (
        "previous_response_not_found",
        "previous_response_id",
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")],
)
def test_an_unknown_response_is_a_404(server, method, path):
    answer = server.http.request(method, f"{server.url}{PATH}/resp_x{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "response_not_found"


def test_a_response_is_found_only_with_the_credentials_that_created_it(server):
    mine = {"authorization": "Bearer mine"}
    response = checked(server.post(body(scripted(text="four")), PATH, headers=mine).json())
    for yours in ({}, {"authorization": "Bearer yours"}):
        url = f"{server.url}{PATH}/{response.id}"
        assert stored(server, response.id, **yours).status_code == 404
        assert server.get(f"{PATH}/{response.id}/input_items", headers=yours).status_code == 404
        assert server.http.delete(url, headers=yours).status_code == 404
        for sent in (
            body(previous_response_id=response.id),
            body([{"type": "item_reference", "id": response.output[0].id}]),
        ):
            assert server.post(sent, PATH, headers=yours).status_code == 404
    assert stored(server, response.id, **mine).status_code == 200
    sent = body(previous_response_id=response.id)
    assert server.post(sent, PATH, headers=mine).status_code == 200


def listing(server, response_id, **query):
    return server.get(f"{PATH}/{response_id}/input_items", params=query)


def test_input_items_are_listed_in_pages(server):
    response = whole(server, [user("a"), user([text("b"), image(image_url())]), user("c")])
    pages = [ResponseItemList.model_validate(listing(server, response.id, limit=2).json())]
    assert pages[0].has_more
    after = pages[0].last_id
    pages.append(
        ResponseItemList.model_validate(listing(server, response.id, limit=2, after=after).json())
    )
    assert not pages[1].has_more
    assert [[item.content[0].text for item in page.data] for page in pages] == [["c", "b"], ["a"]]
    assert pages[0].data[1].content[1].image_url == image_url()
    assert (pages[1].first_id, pages[1].last_id) == (pages[1].data[0].id,) * 2
    rising = listing(server, response.id, order="asc").json()["data"]
    assert [item["id"] for item in reversed(rising)] == [
        item.id for page in pages for item in page.data
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": 0}, "limit"), ({"limit": "x"}, "limit"), ({"limit": 101}, "limit"),
     ({"order": "up"}, "order"), ({"after": "msg_x"}, "after")],
)  # fmt: skip
def test_an_invalid_query_is_refused(server, query, param):
    answer = listing(server, whole(server).id, **query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def in_background(server, **script):
    return whole(server, scripted(**script), background=True)


def status(server, response_id):
    return checked(stored(server, response_id).json()).status


def test_a_streamed_response_can_be_retrieved_while_it_runs(server):
    client = server.client().responses
    with client.create(**body(scripted(**SLOW)), stream=True) as stream:
        response_id = next(iter(stream)).response.id
        response = client.retrieve(response_id)
        assert (response.status, response.output) == ("in_progress", [])
        with pytest.raises(openai.BadRequestError) as raised:
            client.create(**body(), previous_response_id=response_id)
        assert raised.value.param == "previous_response_id"
        with pytest.raises(openai.BadRequestError) as raised:
            client.cancel(response_id)
        assert raised.value.param == "id"
    assert eventually(server.is_idle)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(response_id)


def test_a_background_response_can_be_retrieved_later(server):
    client = server.client().responses
    response = client.create(**body(scripted(text="four", latency_s=0.05)), background=True)
    assert (response.status, response.background, response.output) == ("in_progress", True, [])
    assert eventually(lambda: client.retrieve(response.id).status == "completed")
    assert client.retrieve(response.id).output_text == "four"
    assert client.cancel(response.id).status == "completed"
    following = client.create(**body("why?"), previous_response_id=response.id)
    assert following.output_text == "why?"
    assert eventually(server.is_idle)


def test_a_background_response_can_be_cancelled(server):
    response = in_background(server, **SLOW)
    assert not server.is_idle()
    for _ in range(2):
        cancelled = server.http.post(f"{server.url}{PATH}/{response.id}/cancel")
        assert checked(cancelled.json()).status == "cancelled"
        assert eventually(server.is_idle)
    assert status(server, response.id) == "cancelled"
    assert refused(server, previous_response_id=response.id)["param"] == "previous_response_id"


def test_deleting_a_background_response_ends_it(server):
    response = in_background(server, **SLOW)
    assert server.http.delete(f"{server.url}{PATH}/{response.id}").json()["deleted"] is True
    assert eventually(server.is_idle)


def test_a_failed_background_response_has_its_error(server):
    response = in_background(server, text="abcdef", fail_at_token=3)
    assert eventually(lambda: status(server, response.id) == "failed")
    failed = checked(stored(server, response.id).json())
    assert failed.error.code == "server_error"


def test_a_background_response_counts_against_max_requests():
    with running(max_requests=2) as server:
        response = in_background(server, **SLOW)
        second = server.post(body(scripted(**SLOW), background=True), PATH)
        assert (second.status_code, second.json()["error"]["code"]) == (429, "server_overloaded")
        assert eventually(lambda: server.runner().stats().num_running == 1)
        assert server.http.post(f"{server.url}{PATH}/{response.id}/cancel").status_code == 200
        assert eventually(server.is_idle)
        assert whole(server).status == "completed"


def test_a_drain_ends_background_responses():
    with running(drain_timeout_s=0.1) as server:
        runner = server.runner()
        in_background(server, **SLOW)
        assert eventually(lambda: runner.stats().num_running == 1)
        server.service.admission.is_draining = True
        refused = server.post(body("x", background=True), PATH)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
    assert runner.stats().num_running == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_background_response_without_storage_is_refused(server, stream):
    assert refused(server, background=True, store=False, stream=stream)["param"] == "background"
    assert eventually(server.is_idle)


def test_a_server_without_response_storage_refuses_storing():
    with running(responses=ResponsesSettings(max_stored=0)) as server:
        response = whole(server)
        assert response.store is False
        assert stored(server, response.id).status_code == 404
        assert refused(server, store=True)["param"] == "store"
        assert refused(server, background=True)["param"] == "background"


def test_the_least_recently_used_response_is_evicted():
    with running(responses=ResponsesSettings(max_stored=2)) as server:
        first, second = whole(server, scripted(text="1")), whole(server, scripted(text="2"))
        assert stored(server, first.id).status_code == 200
        third = whole(server, "so?", previous_response_id=first.id)
        held = [stored(server, each.id).status_code for each in (first, second, third)]
        assert held == [200, 404, 200]


def test_a_response_too_large_to_store_is_reported_as_not_stored():
    with running(responses=ResponsesSettings(max_stored_bytes=10_000)) as server:
        small, large = whole(server, "x"), whole(server, "x" * 10_000, max_output_tokens=3)
        assert [small.store, large.store] == [True, False]
        assert [stored(server, each.id).status_code for each in (small, large)] == [200, 404]
        assert refused(server, "x" * 10_000, background=True)["param"] == "background"
        assert eventually(server.is_idle)


def test_a_stored_conversation_is_limited_to_the_size_of_a_body():
    with running(max_body_bytes=4000) as server:
        response = whole(server, "x" * 3000, max_output_tokens=3)
        response = whole(server, "y" * 1000, previous_response_id=response.id, max_output_tokens=3)
        error = refused(server, "z", previous_response_id=response.id)
        assert (error["code"], error["param"]) == (
            "context_length_exceeded",
            "previous_response_id",
        )


def test_a_stored_conversation_is_limited_to_the_item_count_of_a_body(server):
    response = whole(server, [user("")] * 2047, max_output_tokens=3)
    assert refused(server, [user("a")], previous_response_id=response.id)["param"] == "input"


def test_a_refused_image_of_a_stored_response_names_the_input_field(server):
    items = [user([image(image_url())])]
    response = whole(server, items)
    with running(max_request_pixels=1) as small:
        error = refused(small, items)
        assert error["param"] == "input"
    limit = server.runner().facts.bounds.max_images
    error = refused(server, [user([image(image_url())] * limit)], previous_response_id=response.id)
    assert (error["code"], error["param"]) == ("too_many_images", "input")


# The store itself.

OWNER = b"me"


def item(name, size=1):
    return StoredItem(name, b"x" * size)


ACTION = st.one_of(
    st.tuples(
        st.just("ask"),
        st.integers(0, 9),
        st.integers(0, 400),
        st.booleans(),
        st.sampled_from(["one", "other"]),
    ),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("find"), st.integers(0, 9)),
    st.tuples(st.just("abandon"), st.integers(0, 9)),
    st.tuples(st.just("grow"), st.integers(0, 9), st.integers(0, 2000)),
)


@given(st.lists(ACTION, max_size=40), st.integers(1, 5), st.integers(500, 5000))
def test_the_store_stays_within_its_limits_and_counts_exactly(actions, most, most_bytes):
    store = ResponseStore(ResponsesSettings(max_stored=most, max_stored_bytes=most_bytes))
    names, unfinished = [], set()
    for number, (kind, which, *how) in enumerate(actions):
        name = names[which % len(names)] if names else "none"
        if kind == "ask":
            size, is_over, account = how
            before = None
            with contextlib.suppress(RequestError):
                before = store.turn(name, OWNER)
            turn = Turn(OWNER, (item(f"i{number}", size),), before, account)
            log = EventLog(store.max_event_bytes)
            try:
                if not store.begin(f"r{number}", b"body", turn, None, log):
                    continue
            except Overloaded:  # this tenant has only unfinished responses
                own = [r for r in store._responses.values() if r.turn.account == account]
                assert not any(response.is_over for response in own)
                continue
            names.append(f"r{number}")
            unfinished.add(f"r{number}")
            if is_over:
                store.finish(names[-1], b"whole body", (item(f"o{number}", size),))
                unfinished.discard(names[-1])
        elif kind == "abandon":
            store.abandon(name)
            unfinished.discard(name)
        elif kind == "grow":
            if found := store._responses.get(name):
                found.log.add(b"x" * how[0] + b"\n\n")
                store.grow(name, found.log.num_bytes)
        else:
            with contextlib.suppress(RequestError):
                getattr(store, kind)(name, OWNER)
                unfinished -= {name} if kind == "delete" else set()
        assert unfinished <= store._responses.keys()  # running answers continue
        check(store, most, most_bytes)
    for name in names:
        with contextlib.suppress(RequestError):
            store.delete(name, OWNER)
    assert (store._held.num_bytes, store._responses, list(store._turns.output_item_ids)) == (
        0,
        {},
        [],
    )


def check(store, most, most_bytes):
    """Compare the counters of the store with a new count."""
    assert len(store._responses) <= most
    turns = {}
    for response in store._responses.values():
        turn = response.turn
        while turn is not None and turn not in turns:
            turns[turn] = True
            turn = turn.previous
    bodies = sum(len(response.body) for response in store._responses.values())
    events = sum(store._num_event_bytes.values())
    assert store._held.num_bytes == bodies + events + sum(turn.num_bytes for turn in turns)
    assert store._num_event_bytes.keys() <= store._responses.keys()
    assert store._held.num_bytes <= most_bytes
    assert store._turns.output_item_ids == {each.id for turn in turns for each in turn.output_items}


def test_a_long_chain_of_responses_is_freed_without_recursion():
    store = ResponseStore(ResponsesSettings(max_stored=1))
    turn = None
    for number in range(5000):
        turn = Turn(OWNER, (item(f"i{number}"),), turn)
        store.begin(f"r{number}", b"", turn)
        store.finish(f"r{number}", b"", (item(f"o{number}"),))
    assert len(turn.items()) == 10_000
    store.delete("r4999", OWNER)
    assert (store._held.num_bytes, list(store._turns.output_item_ids)) == (0, [])


def test_an_oversized_answer_is_dropped_alone():
    store = ResponseStore(ResponsesSettings(max_stored_bytes=2000))
    store.begin("small", b"", Turn(OWNER, (item("a"),), None))
    store.begin("large", b"", Turn(OWNER, (item("b"),), None))
    store.finish("large", b"", (item("c", 5000),))
    assert store.find("small", OWNER)
    with pytest.raises(RequestError):
        store.find("large", OWNER)


def begin_response(store, name, account, size=1):
    turn = Turn(account.encode(), (item(f"{name}-said", size),), None, account)
    return store.begin(name, b"", turn)


def test_responses_of_the_tenant_with_most_are_evicted():
    store = ResponseStore(ResponsesSettings(max_stored=10))
    for number in range(3):
        begin_response(store, f"mine{number}", "me")
        store.finish(f"mine{number}", b"", ())
    for number in range(100):
        begin_response(store, f"theirs{number}", "them")
        store.finish(f"theirs{number}", b"", ())
    kept = list(store._responses)
    assert kept == [f"mine{n}" for n in range(3)] + [f"theirs{n}" for n in range(93, 100)]
    begin_response(store, "mine3", "me")
    assert "theirs93" not in store._responses


def test_unfinished_responses_are_never_evicted():
    store = ResponseStore(ResponsesSettings(max_stored=4))
    for number in range(4):
        begin_response(store, f"theirs{number}", "them")
    with pytest.raises(Overloaded, match="still being answered"):
        begin_response(store, "theirs4", "them")
    with pytest.raises(Overloaded):
        begin_response(store, "mine", "me")
    store.finish("theirs2", b"", ())
    assert begin_response(store, "mine", "me")
    assert list(store._responses) == ["theirs0", "theirs1", "theirs3", "mine"]


def test_events_over_the_limit_are_dropped_and_responses_are_kept():
    store = ResponseStore(ResponsesSettings(max_stored_bytes=4000))
    log = EventLog(4000)
    turn = Turn(b"them", (item("said"),), None, "them")
    store.begin("theirs", b"", turn, None, log)
    begin_response(store, "mine", "me", 1000)
    store.finish("mine", b"", ())
    for _ in range(100):
        log.add(b"x" * 98 + b"\n\n")
        store.grow("theirs", log.num_bytes)
        assert store._held.num_bytes <= 4000
    assert list(store._responses) == ["theirs", "mine"]
