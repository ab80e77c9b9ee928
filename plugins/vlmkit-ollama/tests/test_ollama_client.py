"""The unmodified client ``ollama`` on a server process."""

import asyncio
import base64
import functools
import io
import json
import math
import re
from datetime import UTC, datetime

import httpx
import ollama
import pytest
from PIL import Image

HELLO = [{"role": "user", "content": "hello there"}]
COUNTS = ("prompt_eval_count", "eval_count")
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def weather(city: str) -> str:
    """Say how the weather is.

    Args:
        city: the name of a city.
    """
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def png():
    file = io.BytesIO()
    Image.new("RGB", (40, 24), "red").save(file, "PNG")
    return file.getvalue()


def openai(url, path, **body):
    answer = httpx.post(f"{url}{path}", json={"model": "mock"} | body, trust_env=False)
    return answer.raise_for_status().json()


def test_a_chat_has_the_text_and_the_counts_of_openais_api(client, url):
    same = openai(url, "/v1/chat/completions", messages=HELLO)
    answer = client.chat("mock", HELLO)
    assert answer.message.content == same["choices"][0]["message"]["content"]
    assert (answer.message.role, answer.done, answer.done_reason) == ("assistant", True, "stop")
    usage = same["usage"]
    assert [answer[each] for each in COUNTS] == [usage["prompt_tokens"], usage["completion_tokens"]]
    assert all(isinstance(answer[each], int) for each in DURATIONS)
    assert sum(answer[each] for each in DURATIONS[1:]) <= answer.total_duration


def test_the_lines_of_a_stream_add_up_to_the_whole_answer(client):
    *pieces, last = client.chat("mock", HELLO, stream=True)
    assert len(pieces) > 1
    assert "".join(piece.message.content for piece in pieces) == "hello there"
    assert not any(piece.done for piece in pieces)
    assert (last.done, last.done_reason, last.message.content) == (True, "stop", "")
    assert last.eval_count == client.chat("mock", HELLO).eval_count


@pytest.mark.parametrize(
    ("path", "body"), [("chat", {"messages": HELLO}), ("generate", {"prompt": "hello there"})]
)
def test_an_answer_is_streamed_as_lines_of_json_unless_the_body_says_otherwise(url, path, body):
    answer = httpx.post(f"{url}/api/{path}", json={"model": "mock"} | body, trust_env=False)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["done"] for line in answer.text.splitlines()][-2:] == [False, True]
    body = {"model": "mock", "stream": False} | body
    answer = httpx.post(f"{url}/api/{path}", json=body, trust_env=False)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["done"]


def test_a_prompt_is_answered_whole_and_streamed(client):
    whole = client.generate("mock", "hello there", system="Be brief.")
    assert whole.response == "hello there"
    assert whole.prompt_eval_count > client.generate("mock", "hello there").prompt_eval_count
    pieces = [*client.generate("mock", "hello there", stream=True)]
    assert "".join(piece.response for piece in pieces) == "hello there"
    assert pieces[-1].done_reason == "stop"


def test_the_model_sees_the_images_of_messages_and_prompts(client, url, png):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + _text(png)}}
    parts = [image, {"type": "text", "text": "describe"}]
    same = openai(url, "/v1/chat/completions", messages=[{"role": "user", "content": parts}])
    expected = same["choices"][0]["message"]["content"]
    assert "image 1: 40x24" in expected
    message = {"role": "user", "content": "describe", "images": [png]}
    assert client.chat("mock", [message]).message.content == expected
    assert client.generate("mock", "describe", images=[png]).response == expected


def test_a_bad_image_is_an_error_that_names_no_content(client):
    message = {"role": "user", "content": "x", "images": [_text(b"no image at all")]}
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("mock", [message])
    assert refused.value.status_code == 400
    assert "no image at all" not in refused.value.error


@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_is_called_and_its_result_is_answered(client, streams):
    messages = [{"role": "user", "content": "How is the weather in Köln?"}]
    answer = client.chat("mock", messages, tools=[weather], stream=streams)
    answers = [*answer] if streams else [answer]
    (call,) = [call for each in answers for call in each.message.tool_calls or ()]
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Köln"})
    assert "".join(each.message.content for each in answers) == "I look."
    assert answers[-1].done_reason == "stop"
    messages.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
    result = weather(**call.function.arguments)
    messages.append({"role": "tool", "tool_name": "weather", "content": result})
    answer = client.chat("mock", messages, tools=[weather])
    assert answer.message.content == "It is sunny."
    assert not answer.message.tool_calls


def test_two_calls_of_one_answer_are_two_objects_in_their_order(client):
    messages = [{"role": "user", "content": "Look twice."}]
    tool = {"type": "function", "function": {"name": "look", "description": "Look."}}
    pieces = client.chat("mock", messages, tools=[tool], stream=True)
    calls = [call for each in pieces for call in each.message.tool_calls or ()]
    assert [call.function.arguments for call in calls] == [{"at": "left"}, {}]


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
}


@pytest.mark.parametrize("form", ["json", SCHEMA])
def test_an_answer_in_a_format_is_json(client, form):
    answer = client.chat("mock", [{"role": "user", "content": "Tell it as JSON."}], format=form)
    assert answer.message.content == '{"colour": "red", "count": 3}'


def test_a_format_constrains_what_the_model_says(client):
    answer = client.generate("mock", "x", format={"enum": ["maybe"]}, options={"num_predict": 30})
    assert answer.response == '"maybe"'


def test_an_invalid_format_is_refused(client):
    for form in ({"type": "nothing"}, {"$ref": "#/missing"}):
        with pytest.raises(ollama.ResponseError) as refused:
            client.generate("mock", "x", format=form)
        assert refused.value.status_code == 400


@pytest.mark.parametrize("think", [None, True, "high"])
def test_reasoning_is_apart_from_the_answer(client, think):
    messages = [{"role": "user", "content": "think first"}]
    whole = client.chat("mock", messages, think=think).message
    assert (whole.thinking, whole.content) == ("Let me see.", "Yes.")
    pieces = [each.message for each in client.chat("mock", messages, think=think, stream=True)]
    assert "".join(piece.thinking or "" for piece in pieces) == "Let me see."
    assert "".join(piece.content for piece in pieces) == "Yes."
    assert client.generate("mock", "think first", think=think).thinking == "Let me see."
    messages += [whole, {"role": "user", "content": "hello there"}]
    assert client.chat("mock", messages).message.content == "hello there"


def test_num_predict_limits_the_answer(client):
    answer = client.generate("mock", "be long", options={"num_predict": 7})
    assert (answer.eval_count, answer.done_reason) == (7, "length")
    for unlimited in (-1, -2):
        answer = client.generate("mock", "be long", options={"num_predict": unlimited})
        assert answer.eval_count == 201  # the end is a token


def test_an_answer_ends_at_a_stop_string(client):
    answer = client.generate("mock", "hello there", options={"stop": [" th"]})
    assert (answer.response, answer.done_reason) == ("hello", "stop")


def test_log_probabilities_are_reported_with_their_tokens(client):
    asked = {"logprobs": True, "top_logprobs": 2}
    whole = client.chat("mock", HELLO, **asked).logprobs
    assert "".join(each.token for each in whole) == "hello there"
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 2 for each in whole)
    pieces = client.chat("mock", HELLO, stream=True, **asked)
    assert [entry for piece in pieces for entry in piece.logprobs or ()] == whole


def test_vectors_have_length_one_and_the_direction_of_openais_api(client, url):
    same = openai(url, "/v1/embeddings", input=["one", "two"])["data"]
    answer = client.embed("mock", ["one", "two"])
    for vector, item in zip(answer.embeddings, same, strict=True):
        assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-5)
        length = math.hypot(*item["embedding"])
        assert vector == pytest.approx([each / length for each in item["embedding"]], rel=1e-5)
    assert client.embed("mock", "one").embeddings[0] == answer.embeddings[0]
    assert client.embeddings("mock", "one").embedding == same[0]["embedding"]
    assert client.embed("mock", []).embeddings == []


def test_the_served_models_are_listed_and_described(client):
    assert [model.model for model in client.list().models] == ["mock", "other"]
    assert [model.model for model in client.ps().models] == ["mock"]
    shown = client.show("mock")
    assert {"completion", "vision", "tools", "embedding"} <= set(shown.capabilities)
    assert shown.modelinfo["vlmkit.context_length"] == client.ps().models[0].context_length
    assert client.show("other").details.parent_model == "mock"


def test_a_name_with_the_tag_latest_is_the_model_without_it(client):
    assert client.chat("mock:latest", HELLO).model == "mock"
    assert client.show("mock:latest").capabilities == client.show("mock").capabilities


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.chat("none", HELLO),
        lambda client: client.generate("none:latest", "x"),
        lambda client: client.embed("none", "x"),
        lambda client: client.show("none"),
        lambda client: next(client.chat("none", HELLO, stream=True)),
    ],
)
def test_a_model_that_is_not_served_is_not_found(client, ask):
    with pytest.raises(ollama.ResponseError) as missing:
        ask(client)
    assert missing.value.status_code == 404
    assert missing.value.error.startswith("the model is not served here")


def test_a_chat_without_messages_loads_the_model_and_never_unloads_it(client):
    for answer in (client.chat("mock", []), client.generate("mock", "")):
        assert (answer.done, answer.done_reason) == (True, "load")
    for keep_alive in (0, "0s"):
        with pytest.raises(ollama.ResponseError, match="keep_alive cannot unload"):
            client.generate("mock", keep_alive=keep_alive)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"raw": True}, "raw is not supported"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"template": "{{ .Prompt }}"}, "template is not supported"),
        ({"context": [1, 2]}, "context is not supported"),
        ({"options": {"mirostat": 2}}, "options.mirostat is not supported"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z is not supported"),
        ({"options": {"temperature": 3}}, "options.temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_what_would_change_the_answer_and_cannot_is_refused_by_its_name(client, fields, named):
    with pytest.raises(ollama.ResponseError) as refused:
        client.generate("mock", "x", **fields)
    assert refused.value.status_code == 400
    assert named in refused.value.error


def test_what_changes_no_answer_is_reported(url):
    body = {"model": "mock", "messages": HELLO, "keep_alive": "5m", "options": {"num_ctx": 2048}}
    answer = httpx.post(f"{url}/api/chat", json=body, trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["x-vlmkit-ignored"] == "keep_alive, options.num_ctx"


def test_an_answer_that_fails_in_a_stream_raises_after_its_pieces(client):
    pieces = []
    with pytest.raises(ollama.ResponseError):
        pieces.extend(client.chat("mock", [{"role": "user", "content": "break"}], stream=True))
    with pytest.raises(ollama.ResponseError) as failed:
        client.chat("mock", [{"role": "user", "content": "break"}])
    assert failed.value.status_code == 500


def test_sixteen_questions_at_once_get_their_own_answers(url):
    async def ask(client, number):
        messages = [{"role": "user", "content": f"number {number}"}]
        pieces = [piece async for piece in await client.chat("mock", messages, stream=True)]
        return "".join(piece.message.content for piece in pieces)

    async def ask_all():
        async with ollama.AsyncClient(url, trust_env=False) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(16)))

    assert asyncio.run(ask_all()) == [f"number {number}" for number in range(16)]


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/x-www-form-urlencoded"}])
def test_a_body_needs_no_media_type_unless_a_web_page_may_have_sent_it(url, headers):
    """LiteLLM sends none, and curl that of forms."""
    body = json.dumps({"model": "mock", "messages": HELLO, "stream": False})
    ask = functools.partial(httpx.post, f"{url}/api/chat", content=body, trust_env=False)
    assert ask(headers=headers).json()["message"]["content"] == "hello there"
    for added in ({"origin": "https://page.example"}, {"origin": "null"}, {"sec-fetch-site": "x"}):
        answer = ask(headers=headers | added)
        assert (answer.status_code, set(answer.json())) == (415, {"error"})
        with_type = headers | added | {"content-type": "application/json"}
        assert ask(headers=with_type).status_code == 200


@pytest.mark.parametrize("names", [{"model": "mock", "name": ""}, {"model": "", "name": "mock"}])
def test_one_of_the_two_names_of_a_described_model_may_be_empty(url, names):
    """Ollama's command sends both, and all other fields, empty."""
    body = {"system": "", "template": "", "options": None} | names
    answer = httpx.post(f"{url}/api/show", json=body, trust_env=False)
    assert answer.json()["model_info"]["general.basename"] == "mock"
    nothing = httpx.post(f"{url}/api/show", json={"model": "", "name": ""}, trust_env=False)
    assert (nothing.status_code, nothing.json()) == (400, {"error": "model must be given"})


@pytest.mark.parametrize("ask", ["pull", "push", "create", "delete"])
def test_a_change_of_the_models_is_an_error_whose_text_says_who_decides(client, ask):
    with pytest.raises(ollama.ResponseError) as refused:
        getattr(client, ask)("mock")
    assert refused.value.status_code == 404
    assert refused.value.error == (
        f"/api/{ask} is not served here (the operator decides which models are served)"
    )


def test_the_address_of_the_server_answers_to_a_head_request(url):
    """Ollama's command sends one before all else."""
    answer = httpx.head(url, headers={"accept": "application/json"}, trust_env=False)
    assert answer.status_code == 200


def test_each_listed_model_has_a_digest_that_its_aliases_share(client):
    """Ollama's command shows the first twelve characters, and fails without them."""
    listed = {model.model: model.digest for model in client.list().models}
    assert set(listed) == {"mock", "other"}
    assert len(set(listed.values())) == 1
    (running,) = client.ps().models
    assert re.fullmatch("[0-9a-f]{64}", running.digest)
    assert running.digest == listed["mock"]
    assert running.expires_at > datetime.now(UTC)


def test_the_version_is_one_that_clients_can_compare(url):
    answer = httpx.get(f"{url}/api/version", trust_env=False).json()
    assert all(part.isdecimal() for part in answer["version"].split("."))


def test_the_openapi_document_describes_streams_as_lines_of_the_answers_type(url):
    document = httpx.get(f"{url}/openapi.json", trust_env=False).json()
    paths = document["paths"]
    for path in ("/api/chat", "/api/generate"):
        content = paths[path]["post"]["responses"]["200"]["content"]
        assert set(content) == {"application/json", "application/x-ndjson"}
        assert content["application/x-ndjson"] == content["application/json"]
    # A name that another API has, too, would rename the other's schema for generated clients.
    assert not [name for name in document["components"]["schemas"] if "vlmkit_ollama" in name]


def _text(content):
    return base64.b64encode(content).decode()
