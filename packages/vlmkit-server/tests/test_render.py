"""``/render``: the prompt tokens of an answer, and the positions of its images."""

import pytest
from running_server import chat, image_part, image_url

from vlmkit_mock import vocabulary as v

CHAT = "/v1/chat/completions"
LARGE = image_url(40, 30)


def rendered(server, body, path=CHAT):
    answer = server.post(body, f"{path}/render")
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(server, body, path=CHAT):
    answer = server.post(body, f"{path}/render")
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def image_chat(*urls, **fields):
    parts = [{"type": "text", "text": "and"}, *map(image_part, urls)]
    return {"model": "mock", "messages": [{"role": "user", "content": parts}]} | fields


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}]},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"add_generation_prompt": False},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
         "continue_final_message": True},
    ],
)  # fmt: skip
def test_a_rendered_chat_has_the_prompt_tokens_of_its_answer(server, fields):
    body = image_chat(image_url(), LARGE) | fields
    answer = server.post(body | {"return_token_ids": True}).json()
    found = rendered(server, body)
    assert found["token_ids"] == answer["prompt_token_ids"]
    assert found["num_tokens"] == len(found["token_ids"]) == answer["usage"]["prompt_tokens"]
    each = [image["num_tokens"] for image in found["images"]]
    assert each == answer["usage"]["prompt_tokens_details"]["image_tokens_each"]


def test_each_image_has_its_position_digest_sizes_and_token_count(server):
    found = rendered(server, image_chat(image_url(), LARGE, image_url()))
    features, ids = found["features"], found["token_ids"]
    placeholders = features["mm_placeholders"]["image"]
    assert [placeholder["length"] for placeholder in placeholders] == [6, 6, 6]
    assert {ids[placeholder["offset"]] for placeholder in placeholders} == {v.IMAGE_START}
    first, second, third = features["mm_hashes"]["image"]
    assert first == third != second
    assert [len(bytes.fromhex(digest)) for digest in (first, second)] == [32, 32]
    assert found["images"][1] == {
        "num_tokens": 4, "width": 40, "height": 30, "used_width": 40, "used_height": 30,
        "detail": "auto", "max_image_tokens": None, "mm_processor_kwargs": None, "page": None,
    }  # fmt: skip


def test_a_rendered_text_has_no_features(server):
    found = rendered(server, chat())
    assert (found["features"], found["images"]) == (None, [])


def test_sampling_parameters_are_returned_under_vllms_names(server):
    found = rendered(
        server,
        chat(max_completion_tokens=7, temperature=0.5, stop=["a"], logprobs=True, top_logprobs=3,
             logit_bias={"5": 1.0}, seed=4, n=2, stream=True, cache_salt="s", priority=3),
    )  # fmt: skip
    params = found.pop("sampling_params")
    expected = {
        "max_tokens": 7,
        "temperature": 0.5,
        "stop": ["a"],
        "logprobs": 3,
        "n": 2,
        "seed": 4,
    }
    assert expected.items() <= params.items()
    assert params["logit_bias"] == {"5": 1.0}
    assert "top_logprobs" not in params
    assert (found["model"], found["stream"], found["cache_salt"]) == ("mock", True, "s")
    assert found["priority"] == 3
    assert found["request_id"].startswith("chatcmpl-")


def test_sampling_parameters_default_to_those_of_the_model(server):
    params = rendered(server, chat())["sampling_params"]
    defaults = server.runner().facts.defaults
    assert params["temperature"] == defaults.temperature
    assert (params["max_tokens"], params["logprobs"], params["structured_outputs"]) == (
        None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_grammar": "start: X"}, {"grammar": "start: X"}),
        ({"guided_json": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
    ],
)
def test_the_constraint_of_the_answer_is_returned(server, form, expected):
    assert rendered(server, chat(**form))["sampling_params"]["structured_outputs"] == expected


def test_each_text_prompt_has_the_prompt_tokens_of_its_completion(server):
    path = "/v1/completions"
    body = {"model": "mock", "prompt": ["né", "xy"], "return_token_ids": True}
    choices = server.post(body, path).json()["choices"]
    found = rendered(server, body, path)
    assert [each["token_ids"] for each in found] == [each["prompt_token_ids"] for each in choices]
    assert [each["sampling_params"]["max_tokens"] for each in found] == [16, 16]
    (bare,) = rendered(server, body | {"prompt": [97, 98]}, path)
    assert bare["token_ids"] == [97, 98]
    (bare,) = rendered(server, body | {"prompt": "ab", "add_special_tokens": False}, path)
    assert bare["token_ids"] == [97, 98]


def test_a_message_of_anthropics_api_has_the_tokens_of_its_usage(server):
    data = image_url().partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    turn = {"role": "user", "content": [{"type": "image", "source": source}]}
    body = {"model": "mock", "max_tokens": 5, "system": "be brief", "messages": [turn]}
    usage = server.post(body, "/v1/messages").json()["usage"]
    found = rendered(server, body, "/v1/messages")
    assert len(found["token_ids"]) == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert len(found["features"]["mm_hashes"]["image"]) == 1


def test_a_prompt_longer_than_the_context_is_rendered(server):
    most = server.runner().facts.limits.max_sequence_tokens
    found = rendered(server, chat("x" * most))
    assert found["num_tokens"] > found["max_model_len"] == most


def test_rendering_runs_no_engine_step(server):
    before = server.runner().stats().counters
    rendered(server, image_chat(image_url()))
    after = server.runner().stats().counters
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {"num_image_hits", "num_image_misses"}


@pytest.mark.parametrize(
    ("body", "param", "path"),
    [
        (image_chat("data:image/png;base64,AAAA"), "messages[0].content[1].image_url.url", CHAT),
        (chat(temperature=9), "temperature", CHAT),
        (chat(guided_choice=[]), "guided_choice", CHAT),
        (chat(audio={"voice": "a"}), "audio", CHAT),
        ({"model": "mock", "prompt": ["x", [9999]]}, "prompt[1]", "/v1/completions"),
        ({"model": "mock", "prompt": "x", "n": 999}, "n", "/v1/completions"),
    ],
)
def test_an_invalid_request_is_refused_like_by_its_generation_route(server, body, param, path):
    assert refusal(server, body, path)["param"] == param
    assert server.post(body, path).json()["error"]["param"] == param


def test_a_rendered_response_includes_its_previous_responses(server):
    responses = "/v1/responses"
    made = server.post({"model": "mock", "input": "four"}, responses).json()
    then = {"model": "mock", "input": "why?", "previous_response_id": made["id"]}
    prompt = server.post(then, f"{responses}/render").json()
    answer = server.post(then, responses).json()
    assert prompt["num_tokens"] == answer["usage"]["input_tokens"]
    turns = [("user", "four"), ("assistant", "four"), ("user", "why?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    same = server.post(chat(messages=messages), f"{CHAT}/render").json()
    assert prompt["token_ids"] == same["token_ids"]
    for field, value in (("server_tools", ["x"]), ("input", [])):
        sent = {"model": "mock", "input": "x"} | {field: value}
        assert refusal(server, sent, responses)["param"] == field


def test_errors_have_anthropics_format_for_anthropics_api(server):
    body = chat(max_tokens=5, temperature=9)
    answer = server.post(body, "/v1/messages/render")
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert answer.json()["error"]["message"].startswith("temperature")


def test_ignored_keys_are_reported_and_rendering_checks_the_model(server):
    answer = server.post(chat(flavour=1), f"{CHAT}/render")
    assert answer.headers["x-vlmkit-ignored"] == "flavour"
    assert server.post(chat() | {"model": "other"}, f"{CHAT}/render").status_code == 404
    strict = server.post(chat(flavour=1), f"{CHAT}/render", headers={"x-vlmkit-strict": "1"})
    assert strict.status_code == 400
