"""Message batches by Anthropic's client.

``test_batches`` tests what both kinds of batches share.
"""

import anthropic
import openai
import pytest
from anthropic_client import body, client_of, image, text
from running_server import eventually, running, scripted
from test_batches import data_settings, line, start_batch, wait_for_end as ended_openai

ENDLESS = scripted(text="x", tokens=4000, latency_s=0.02)


@pytest.fixture(scope="module")
def batch_server(tmp_path_factory):
    with running(data=data_settings(tmp_path_factory.mktemp("batches"))) as server:
        yield server


@pytest.fixture(scope="module")
def batches(batch_server):
    return client_of(batch_server).messages.batches


def request(custom_id, content="hello", **fields):
    return {"custom_id": custom_id, "params": body(content, **fields)}


def wait_for_end(batches, batch):
    assert eventually(lambda: batches.retrieve(batch.id).processing_status == "ended")
    return batches.retrieve(batch.id)


def results_of(batches, batch):
    found = list(batches.results(batch.id))
    results = {each.custom_id: each.result for each in found}
    assert len(results) == len(found)
    return results


def test_each_message_is_answered_once_and_errors_are_reported(batches):
    requests = [request(f"n-{n}", [text(f"{n}\u2028"), image()]) for n in range(60)]
    requests[7]["params"]["temperature"] = 9
    requests[8]["params"]["model"] = "none"
    batch = batches.create(requests=requests)
    assert (batch.type, batch.processing_status) == ("message_batch", "in_progress")
    assert (batch.request_counts.processing, batch.results_url) == (60, None)
    assert (batch.expires_at - batch.created_at).total_seconds() == 86_400
    batch = wait_for_end(batches, batch)
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (58, 2, 0)
    results = results_of(batches, batch)
    assert results.keys() == {f"n-{n}" for n in range(60)}
    assert results["n-7"].error.error.type == "invalid_request_error"
    assert "temperature" in results["n-7"].error.error.message
    assert results["n-8"].error.error.type == "not_found_error"
    message = results["n-0"].message
    assert (message.role, message.stop_reason) == ("assistant", "end_turn")
    assert "image 1: 8x6" in message.content[0].text
    assert batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        batches.retrieve(batch.id)


def test_a_message_batch_can_be_cancelled(batches):
    batch = batches.create(requests=[request(f"{n}", ENDLESS) for n in range(20)])
    with pytest.raises(anthropic.BadRequestError):
        batches.delete(batch.id)
    with pytest.raises(anthropic.AnthropicError):
        batches.results(batch.id)
    batch = batches.cancel(batch.id)
    assert batch.cancel_initiated_at is not None
    batch = wait_for_end(batches, batch)
    if batch.request_counts.canceled:  # otherwise it was cancelled before its lines were read
        assert batch.request_counts.canceled == 20
        assert {each.type for each in results_of(batches, batch).values()} == {"canceled"}


def test_message_batches_are_listed_in_pages_without_openai_batches(tmp_path):
    with running(data=data_settings(tmp_path)) as server:
        batches, client = client_of(server).messages.batches, server.client()
        assert list(batches.list()) == []
        other = ended_openai(client, start_batch(client, [line("a")]))
        ids = [batches.create(requests=[request("a")]).id for _ in range(5)][::-1]
        assert [batch.id for batch in batches.list(limit=2)] == ids
        assert [batch.id for batch in batches.list(after_id=ids[2])] == ids[3:]
        page = batches.list(before_id=ids[3], limit=2)
        assert ([batch.id for batch in page.data], page.has_more) == (ids[1:3], True)
        assert [batch.id for batch in client.batches.list()] == [other.id]
        for ask in (client.batches.retrieve, client.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(ids[0])
        for ask in (batches.retrieve, batches.cancel, batches.delete):
            with pytest.raises(anthropic.NotFoundError):
                ask(other.id)
        for field in ("after_id", "before_id"):
            with pytest.raises(anthropic.BadRequestError, match=f"{field} names no batch"):
                batches.list(**{field: other.id})


@pytest.mark.parametrize(
    "requests",
    [
        [],
        [request("a"), request("a")],
        [request("")],
        [request("a b")],
        [request("a" * 65)],
        [{"custom_id": "a"}],
        [{"custom_id": "a", "params": []}],
        [request("a"), request("b", stream=True)],
    ],
)
def test_an_invalid_message_batch_is_refused(batches, requests):
    with pytest.raises(anthropic.BadRequestError) as caught:
        batches.create(requests=requests)
    assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_line_feeds_within_a_request_do_not_split_it(batch_server, batches):
    spread = (
        b'{"requests":[{"custom_id":"a","params":{\n"model":"mock",\r\n"max_tokens":\n3,'
        b'"messages":[{"role":"user","content":"hello"}]}}]}'
    )
    headers = {"x-api-key": "none", "anthropic-version": "2023-06-01"}
    answer = batch_server.post(spread, "/v1/messages/batches", headers=headers).json()
    batch = wait_for_end(batches, batches.retrieve(answer["id"]))
    assert results_of(batches, batch)["a"].type == "succeeded"


def test_a_server_without_a_data_folder_refuses_message_batches(server):
    batches = client_of(server).messages.batches
    assert list(batches.list()) == []
    with pytest.raises(anthropic.BadRequestError):
        batches.create(requests=[request("a")])
    with pytest.raises(anthropic.NotFoundError):
        batches.retrieve("msgbatch_x")
