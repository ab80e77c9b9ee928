"""Routes of llama.cpp's and vLLM's servers: other paths, invocations, and server properties."""

from contextlib import contextmanager

import pytest
from running_server import chat, eventually, image_part, image_url, mock_pipeline, running, scripted
from two_keys import headers_of, thread_with_keys

from vlmkit_server.exchange.gate import ALIASES
from vlmkit_server.http.unserved import UNSERVED

CHATS = "/v1/chat/completions"


@contextmanager
def streaming(server, **script):
    """Keep an answer running."""
    with server.client().chat.completions.create(**chat(scripted(**script)), stream=True) as stream:
        next(iter(stream))
        yield


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/embeddings", "/responses"])
def test_a_path_without_version_is_the_versioned_route(server, path):
    assert ALIASES[path] == f"/v1{path}"
    body = {"prompt": "ab", "input": "ab", "messages": chat()["messages"], "max_tokens": 2}
    wanted = {"/chat/completions": "messages", "/completions": "prompt"}.get(path, "input")
    body = {"model": "mock", wanted: body[wanted]}
    first, again = (server.post(body, each) for each in (path, f"/v1{path}"))
    assert (first.status_code, again.status_code) == (200, 200), first.text
    assert first.json()["object"] == again.json()["object"]
    assert server.post({}, path).json() == server.post({}, f"/v1{path}").json()


def test_llama_cpps_path_applies_the_chat_template(server):
    body = {"messages": chat()["messages"]}
    applied = server.post(body, "/apply-template").json()
    assert applied["prompt"] == server.post(body, f"{CHATS}/render").json()["prompt"]


@pytest.mark.parametrize("path", sorted(UNSERVED))
def test_an_unsupported_route_of_another_server_names_the_alternative(server, path):
    answer = server.post({}, f"{path}1?action=save" if path.endswith("/") else path)
    assert answer.status_code == 404, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("not_found", "invalid_request_error")
    assert error["message"] == f"{path.rstrip('/')} is not served here ({UNSERVED[path]})"


@pytest.mark.parametrize("path", ["/nowhere", "/completions/1", "/slotsx", "/Infill", "/infill/"])
def test_an_unknown_path_is_not_repeated_in_the_error(server, path):
    assert server.post({}, path).json()["error"]["message"] == "not found"


def test_models_are_listed_by_the_short_path(server):
    assert server.get("/models").json() == server.get("/v1/models").json()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (chat(), "chat.completion"),
        ({"prompt": "ab"}, "text_completion"),
        ({"input": "ab"}, "list"),
    ],
)
def test_an_invocation_is_answered_by_the_api_of_its_body(server, body, kind):
    answer = server.post(body, "/invocations")
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == kind


def test_an_invocation_can_be_streamed(server):
    answer = server.post(chat() | {"stream": True}, "/invocations")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("body", [{}, {"text": "ab"}, [], b"{", b'"messages"'])
def test_an_invocation_whose_body_fits_no_api_is_refused(server, body):
    answer = server.post(body, "/invocations")
    assert answer.status_code == 400, answer.text
    assert eventually(server.is_idle)


def test_an_invocation_requires_the_scope_of_its_api(tmp_path):
    (key,) = headers_of(tmp_path, "first")
    with thread_with_keys(tmp_path) as guarded:
        answer = guarded.post({"input": "ab"}, "/invocations", headers=key)
        assert answer.status_code == 403
        assert guarded.post(chat(), "/invocations", headers=key).status_code == 200


def test_a_chat_has_the_token_count_of_its_usage(server):
    parts = [{"type": "text", "text": "and"}, image_part(image_url())]
    body = {"messages": [{"role": "user", "content": parts}]}
    counted = server.post(body, "/v1/chat/completions/input_tokens").json()
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] == server.post(body).json()["usage"]["prompt_tokens"]


def test_load_is_the_number_of_running_requests(server):
    assert eventually(lambda: server.get("/load").json() == {"server_load": 0})
    with streaming(server, text="word ", tokens=2000, latency_s=0.01):
        assert server.get("/load").json() == {"server_load": 1}


def test_properties_and_slots_show_the_state_without_request_content(server):
    limits = server.runner().facts.limits
    props = server.get("/props").json()
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == limits.max_sequence_tokens
    assert props["total_slots"] == limits.max_sequences
    assert props["modalities"] == {"vision": True, "audio": False}

    def slots_in_use() -> list[int]:
        slots = server.get("/slots").json()
        assert len(slots) == limits.max_sequences
        return [slot["id"] for slot in slots if slot["is_processing"]]

    assert eventually(lambda: not slots_in_use())  # the last step of an earlier test may still run
    with streaming(server, text="secret ", tokens=2000, latency_s=0.01):
        slots_answer = server.get("/slots")
        assert [slot["id"] for slot in slots_answer.json() if slot["is_processing"]] == [0]
        assert "secret" not in slots_answer.text


@pytest.mark.parametrize("path", ["/props", "/slots"])
def test_properties_and_slots_require_the_scope_of_operators(tmp_path, path):
    (key,) = headers_of(tmp_path, "first")
    with thread_with_keys(tmp_path) as guarded:
        assert guarded.get(path, headers=key).status_code == 403


@pytest.mark.parametrize("path", ["/props", "/slots", "/tokenizer_info"])
def test_a_model_must_be_named_where_there_are_several(path):
    with running({"a": mock_pipeline(), "b": mock_pipeline()}) as several:
        assert several.get(path).status_code == 400
        assert several.get(f"{path}?model=b").status_code == 200
        assert several.get(f"{path}?model=c").status_code == 404


def test_tokenizer_info_has_the_sizes_of_the_tokenizer(server):
    facts = server.runner().facts
    info = server.get("/tokenizer_info").json()
    assert info["model_max_length"] == facts.limits.max_sequence_tokens
    assert info["vocab_size"] == facts.limits.vocab_size
    assert info["chat_template"] is None
