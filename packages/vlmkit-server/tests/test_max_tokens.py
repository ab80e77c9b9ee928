"""A ``max_tokens`` over the rest of the context: clamped and reported, or refused."""

import json

import anthropic
import openai
import pytest
from running_server import chat, eventually, mock_pipeline, running, scripted

from vlmkit.settings.pipeline import PipelineSettings
from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import add_line
from vlmkit_server.settings.server import DataSettings

HEADER = "x-vlmkit-max-tokens"
CONTEXT = 256
FIXED = 32_000  # a value that some clients always send
ENDLESS = scripted(text="x", tokens=10**6)

ROUTES = {
    "/v1/chat/completions": chat(ENDLESS, max_tokens=FIXED),
    "/v1/completions": {"model": "mock", "prompt": ENDLESS, "max_tokens": FIXED},
    "/v1/messages": chat(ENDLESS, max_tokens=FIXED),
    "/v1/responses": {"model": "mock", "input": ENDLESS, "max_output_tokens": FIXED},
    "/inference/v1/generate": {
        "token_ids": [5, 6, 7],
        "sampling_params": {"max_tokens": FIXED, "ignore_eos": True},
    },
}


def small(**fields):
    return {"mock": mock_pipeline(max_sequence_tokens=CONTEXT, **fields)}


@pytest.fixture(scope="module")
def clamping():
    with running(small(), allow_generate=True) as server:
        yield server


@pytest.fixture(scope="module")
def rejecting():
    with running(small(), allow_generate=True, max_tokens_overflow="reject") as server:
        yield server


def num_answered(path, answer):
    """Return the number of tokens of a whole answer, and its finish reason."""
    if path == "/inference/v1/generate":
        choice = answer["choices"][0]
        return len(choice["token_ids"]), choice["finish_reason"]
    usage = answer["usage"]
    if path == "/v1/messages":
        return usage["output_tokens"], answer["stop_reason"]
    if path == "/v1/responses":
        return usage["output_tokens"], answer["incomplete_details"]["reason"]
    return usage["completion_tokens"], answer["choices"][0]["finish_reason"]


@pytest.mark.parametrize("path", ROUTES)
def test_max_tokens_is_clamped_to_the_context_and_the_header_has_the_limit(clamping, path):
    answer = clamping.post(ROUTES[path], path)
    assert answer.status_code == 200, answer.text
    num_tokens, reason = num_answered(path, answer.json())
    assert answer.headers[HEADER] == str(num_tokens)
    assert 0 < num_tokens < CONTEXT
    assert reason in ("length", "max_tokens", "max_output_tokens")
    streamed = clamping.post(ROUTES[path] | {"stream": True}, path)
    assert streamed.headers[HEADER] == str(num_tokens)


@pytest.mark.parametrize("path", ROUTES)
def test_a_server_set_to_reject_names_the_max_tokens_field(rejecting, path):
    answer = rejecting.post(ROUTES[path], path)
    assert (answer.status_code, HEADER in answer.headers) == (400, False)
    assert f"{FIXED} in the completion" in answer.json()["error"]["message"]
    if path != "/v1/messages":
        assert answer.json()["error"]["param"].rpartition(".")[2] in (
            "max_tokens",
            "max_output_tokens",
        )


def test_a_max_tokens_that_fits_is_neither_clamped_nor_reported(clamping):
    answer = clamping.post(chat(ENDLESS, max_tokens=9))
    assert answer.json()["usage"]["completion_tokens"] == 9
    assert HEADER not in answer.headers
    assert HEADER not in clamping.post(chat(ENDLESS)).headers


def test_a_prompt_that_fills_the_context_is_refused(clamping):
    with pytest.raises(openai.BadRequestError) as caught:
        clamping.client().chat.completions.create(**chat("x" * CONTEXT, max_tokens=FIXED))
    assert caught.value.code == "context_length_exceeded"


def test_the_header_reports_the_shortest_limit_of_several_prompts(clamping):
    sent = {"model": "mock", "prompt": [ENDLESS, ENDLESS + " " * 50], "max_tokens": FIXED}
    answer = clamping.post(sent, "/v1/completions")
    alone = clamping.post(sent | {"prompt": sent["prompt"][1]}, "/v1/completions")
    assert answer.headers[HEADER] == alone.headers[HEADER]


def test_max_tokens_is_clamped_to_the_operators_limit():
    models = {"mock": mock_pipeline(settings=PipelineSettings(max_output_tokens=5))}
    with running(models) as server:
        answer = server.post(chat(ENDLESS, max_tokens=6))
        assert answer.headers[HEADER] == "5"
        assert answer.json()["usage"]["completion_tokens"] == 5
    models = {"mock": mock_pipeline(settings=PipelineSettings(max_output_tokens=5))}
    with running(models, max_tokens_overflow="reject") as server:
        refused = server.post(chat(ENDLESS, max_completion_tokens=6)).json()["error"]
        assert refused["message"] == "max_tokens is over the limit of 5"
        assert refused["param"] == "max_completion_tokens"


def test_the_official_clients_receive_the_length_finish_reason(clamping):
    said = [{"role": "user", "content": ENDLESS}]
    client = anthropic.Anthropic(
        base_url=clamping.url, api_key="none", http_client=clamping.http, max_retries=0
    )
    message = client.messages.create(model="mock", max_tokens=FIXED, messages=said)
    assert message.stop_reason == "max_tokens"
    stream = clamping.client().chat.completions.create(
        model="mock", messages=said, max_completion_tokens=FIXED, stream=True
    )
    assert list(stream)[-1].choices[0].finish_reason == "length"


def test_rate_limits_reserve_the_clamped_amount_of_tokens(tmp_path):
    key, secret = new_key("one", ("chat",), limits=(f"tokens={CONTEXT}/day",))
    path = tmp_path / "keys.jsonl"
    add_line(path, key)
    with running(small(), keys_file=str(path)) as server:
        answer = server.post(
            chat(ENDLESS, max_tokens=FIXED), headers={"authorization": f"Bearer {secret}"}
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["total_tokens"] == CONTEXT


def test_a_batch_line_is_clamped_and_reported(tmp_path):
    with running(small(), data=DataSettings(folder=str(tmp_path / "data"))) as server:
        client = server.client()
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
        content = json.dumps(line | {"body": ROUTES["/v1/chat/completions"]}).encode()
        sent = client.files.create(file=("lines.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=sent.id, endpoint=line["url"], completion_window="24h"
        )
        assert eventually(lambda: client.batches.retrieve(batch.id).status == "completed")
        done = client.batches.retrieve(batch.id)
        response = json.loads(client.files.content(done.output_file_id).text)["response"]
    num_tokens, reason = num_answered("/v1/chat/completions", response["body"])
    assert response["headers"] == {HEADER: str(num_tokens)}
    assert reason == "length"
