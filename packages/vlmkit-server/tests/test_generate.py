"""``/inference/v1/generate``: tokens in, tokens out, and impossible prompts are refused."""

import json

import pytest
from running_server import chat, eventually, image_part, image_url, mock_pipeline, running, scripted

from spelling import SpellingCompiler
from vlmkit_mock import vocabulary as v
from vlmkit_server.apis.tokens.wire_generate import GENERATE

PATH = "/inference/v1/generate"
CHAT = "/v1/chat/completions"
PLACES = "features.mm_placeholders.image"


@pytest.fixture(scope="module")
def server():
    with running(allow_generate=True) as server:
        yield server


def image_chat(*urls, text="what?"):
    parts = [*map(image_part, urls), {"type": "text", "text": text}]
    return {"model": "mock", "messages": [{"role": "user", "content": parts}]}


def rendered(server, body):
    """Return the generate body of a rendered conversation, including its images."""
    answer = server.post(body, f"{CHAT}/render").json()
    if answer["features"]:
        parts = body["messages"][0]["content"]
        answer["features"]["image_urls"] = [
            p["image_url"]["url"] for p in parts if "image_url" in p
        ]
    return answer


def generated(server, body, **headers):
    answer = server.post(body, PATH, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(server, body):
    answer = server.post(body, PATH)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def streamed(server, body):
    lines = server.post(body | {"stream": True}, PATH).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@pytest.mark.parametrize(
    "body",
    [
        chat("hello"),
        chat(scripted(text="one two", reasoning="hm")),
        chat("hello", temperature=1.5, seed=7, n=3, max_tokens=20, logit_bias={"104": -5}),
        chat("hello", stop=["ll"], include_stop_str_in_output=True),
        chat("hello", stop_token_ids=[108], min_tokens=2),
        image_chat(image_url(), image_url(40, 30), image_url()),
        image_chat(image_url(5, 4), image_url(9, 9)) | {"max_image_tokens": 2},
        image_chat(image_url(5, 4)) | {"mm_processor_kwargs": {"max_dynamic_patch": 1}},
        image_chat(image_url(5, 4)) | {"cache_salt": "mine", "max_tokens": 9, "ignore_eos": True},
    ],
)
def test_a_rendered_conversation_has_the_answer_of_its_chat_token_for_token(server, body):
    answer = server.post(body | {"return_token_ids": True}).json()
    done = generated(server, rendered(server, body), **{"x-vlmkit-strict": "1"})
    for made, choice in zip(done["choices"], answer["choices"], strict=True):
        assert made["token_ids"] == choice["token_ids"]
        assert made["finish_reason"] == choice["finish_reason"]
    for count in ("prompt_tokens", "completion_tokens"):
        assert done["usage"][count] == answer["usage"][count]
    each = [usage["prompt_tokens_details"]["image_tokens_each"]
            for usage in (done["usage"], answer["usage"])]  # fmt: skip
    assert each[0] == each[1]


def test_a_rendered_constraint_is_enforced():
    pipeline = mock_pipeline(constraint=SpellingCompiler)
    with running({"mock": pipeline}, allow_generate=True) as server:
        body = chat("which?", guided_choice=["tree", "trunk"])
        text = server.post(body).json()["choices"][0]["message"]["content"]
        ids = generated(server, rendered(server, body))["choices"][0]["token_ids"]
        assert bytes(i for i in ids if i < v.NUM_BYTES).decode() == text != "which?"


def test_a_streamed_answer_equals_the_whole_answer(server):
    body = rendered(server, image_chat(image_url()) | {"n": 2, "logprobs": True, "top_logprobs": 2})
    whole = generated(server, body)
    events = streamed(server, body | {"stream_options": {"include_usage": True}})
    last = events.pop()
    assert (last["choices"], last["usage"]["completion_tokens"]) == (
        [], whole["usage"]["completion_tokens"],
    )  # fmt: skip
    for index, choice in enumerate(whole["choices"]):
        own = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
        assert [i for each in own for i in each["token_ids"]] == choice["token_ids"]
        entries = [entry for each in own for entry in each["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]
        assert [each["finish_reason"] for each in own][-1] == choice["finish_reason"]
    assert {event["request_id"] for event in events} == {body["request_id"]}


def test_logprobs_name_each_token_by_its_id(server):
    prompt = rendered(server, chat("né", logprobs=True, top_logprobs=1))
    (choice,) = generated(server, prompt)["choices"]
    content = choice["logprobs"]["content"]
    assert [each["token"] for each in content] == [f"token_id:{i}" for i in choice["token_ids"]]
    assert choice["token_ids"][-1] == v.END
    assert all(each["logprob"] <= 0 for each in content)
    assert [each["top_logprobs"][0]["token"] for each in content] == [
        each["token"] for each in content
    ]
    assert generated(server, prompt | {"sampling_params": {}})["choices"][0]["logprobs"] is None


def test_a_prompt_has_the_logprobs_of_its_chat(server):
    body = image_chat(image_url()) | {"prompt_logprobs": 1}
    expected = server.post(body).json()["prompt_logprobs"]
    prompt = rendered(server, body)
    assert generated(server, prompt)["prompt_logprobs"] == expected
    assert refusal(server, prompt | {"stream": True})["param"] == "sampling_params.prompt_logprobs"
    assert "prompt_logprobs" not in generated(server, rendered(server, chat()))


def test_token_ids_suffice_and_may_include_control_tokens(server):
    ids = [v.BEGIN, v.USER, *b"hi", v.END, v.ASSISTANT]
    done = generated(server, {"token_ids": ids})
    assert done["choices"][0]["token_ids"] == [*b"hi", v.END]
    assert (done["model"], done["request_id"][:9]) == ("mock", "generate-")
    assert generated(server, {"token_ids": ids, "request_id": "mine"})["request_id"] == "mine"
    assert generated(server, {"token_ids": ids, "sampling_params": {"top_k": -1}})["choices"]


def test_caches_are_shared_with_chats_of_the_same_salt(server):
    body = image_chat(image_url(33, 21), text="a rather long question " * 3)
    server.post(body)
    prompt = rendered(server, body)
    details = "prompt_tokens_details"
    assert generated(server, prompt)["usage"][details]["cached_tokens"] > 0
    other = generated(server, prompt | {"cache_salt": "other"})
    assert other["usage"][details]["cached_tokens"] == 0


def changed(made, **features):
    return made | {"features": made["features"] | features}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (lambda m: m | {"token_ids": [*m["token_ids"], v.VOCAB_SIZE]}, "token_ids"),
        (lambda m: m | {"token_ids": [*m["token_ids"], 2**31 - 1]}, "token_ids"),
        (lambda m: m | {"token_ids": [-1]}, "token_ids[0]"),
        (lambda m: m | {"token_ids": []}, "token_ids"),
        (lambda m: m | {"token_ids": "x"}, "token_ids"),
        (lambda m: m | {"token_ids": [v.IMAGE, *m["token_ids"]]}, f"{PLACES}[0]"),
        (lambda m: m | {"token_ids": [*m["token_ids"], v.IMAGE]}, "token_ids"),
        (lambda m: m | {"token_ids": [*m["token_ids"][:-1], v.IMAGE_END, 1]}, "token_ids"),
        (lambda m: m | {"token_ids": m["token_ids"][:5]}, f"{PLACES}[0]"),
        (lambda m: m | {"token_ids": [65] * 2**15}, f"{PLACES}[0]"),
        (lambda m: m | {"features": None, "token_ids": [65] * 2**15}, "token_ids"),
        (lambda m: m | {"images": []}, "images"),
        (lambda m: m | {"images": [{"max_image_tokens": 2}] * 2}, f"{PLACES}[0]"),
        (lambda m: m | {"images": [{"mm_processor_kwargs": {"x": 1}}] * 2}, "images"),
        (lambda m: changed(m, image_urls=None), "features.image_urls"),
        (lambda m: changed(m, image_urls=[]), "features.image_urls"),
        (lambda m: changed(m, image_urls=[image_url()] * 3), "features.image_urls"),
        (lambda m: changed(m, image_urls=[image_url(), "data:"]), "features.image_urls[1]"),
        (lambda m: changed(m, image_urls=[image_url(), "/etc/passwd"]), "features.image_urls[1]"),
        (lambda m: changed(m, image_urls=m["features"]["image_urls"][::-1]), f"{PLACES}[0]"),
        (lambda m: changed(m, mm_hashes={"image": ["0" * 64] * 2}), f"{PLACES}[0]"),
        (lambda m: changed(m, mm_hashes={"image": ["0" * 64]}), "features.mm_hashes.image"),
        (lambda m: changed(m, mm_hashes={"image": ["x"]}), "features.mm_hashes.image[0]"),
        (lambda m: changed(m, mm_placeholders={"image": [], "audio": [{}]}),
         "features.mm_placeholders.audio"),
        (lambda m: changed(m, kwargs_data={"image": ["AAAA"]}), "features.kwargs_data"),
        (lambda m: changed(m, mm_placeholders={"audio": []}), "features.mm_placeholders"),
        (lambda m: changed(m, mm_placeholders={"image": m["features"]["mm_placeholders"]["image"]
                                               [:1] * 2}), f"{PLACES}[1]"),
        (lambda m: changed(m, mm_placeholders={"image": [{"offset": 2, "length": 6}] * 99}),
         "features.image_urls"),
        (lambda m: changed(m, mm_placeholders={"image": [{"offset": 2, "length": 5}] * 2}),
         f"{PLACES}[0]"),
        (lambda m: changed(m, mm_placeholders={"image": [{"offset": -1, "length": 5}] * 2}),
         f"{PLACES}[0].offset"),
        (lambda m: m | {"sampling_params": {"temperature": 9}}, "sampling_params.temperature"),
        (lambda m: m | {"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
        (lambda m: m | {"sampling_params": {"bad_words": [" "]}}, "sampling_params.bad_words"),
        (lambda m: m | {"sampling_params": {"allowed_token_ids": [9999]}},
         "sampling_params.allowed_token_ids"),
        (lambda m: m | {"sampling_params": {"logprobs": 21}}, "sampling_params.logprobs"),
        (lambda m: m | {"sampling_params": {"structured_outputs": {"choice": ["a"]}}},
         "sampling_params.structured_outputs.choice"),
        (lambda m: m | {"sampling_params": {"structured_outputs": {"choice": []}}},
         "sampling_params.structured_outputs.choice"),
        (lambda m: m | {"kv_transfer_params": {"do": True}}, "kv_transfer_params"),
        (lambda m: m | {"stream_options": {"include_usage": True}}, "stream_options"),
        (lambda m: m | {"request_id": "a b"}, "request_id"),
    ],
)  # fmt: skip
def test_an_impossible_prompt_is_refused_by_name_and_breaks_nothing(server, change, param):
    prompt = rendered(server, image_chat(image_url(), image_url(40, 30)))
    error = refusal(server, change(prompt))
    assert error["param"] == param
    assert len(generated(server, prompt)["choices"]) == 1
    assert eventually(server.is_idle)


def test_an_image_digest_without_its_image_is_refused(server):
    prompt = rendered(server, image_chat(image_url()))
    del prompt["features"]["image_urls"]
    assert refusal(server, prompt)["param"] == "features.image_urls"


def test_a_text_model_accepts_tokens_but_no_images():
    blind = {"mock": mock_pipeline(takes_images=False)}
    with running(blind, allow_generate=True) as server:
        assert generated(server, rendered(server, chat()))["choices"]
        features = {"mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
                    "image_urls": [image_url()]}  # fmt: skip
        body = {"token_ids": [65], "features": features}
        assert refusal(server, body)["param"] == "features.image_urls"


def test_the_route_is_not_found_unless_the_operator_allows_it():
    with running() as server:
        answer = server.post({"token_ids": [65]}, PATH)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert PATH not in server.get("/v1/capabilities").json()["models"][0]["endpoints"]


def test_capabilities_list_the_route_where_it_is_allowed(server):
    endpoint = server.get("/v1/capabilities").json()["models"][0]["endpoints"][PATH]
    refused = {"ec_transfer_params", "kv_transfer_params"}
    assert refused <= set(endpoint["refused"])
    assert {*endpoint["parameters"], *refused} == set(GENERATE.fields)
    assert {"sampling_params.top_a", "features.kwargs_data"} <= set(endpoint["refused"])


def test_a_disconnect_from_a_stream_aborts_the_request(server):
    body = {"token_ids": [*scripted(text="x", tokens=10_000, latency_s=0.01).encode()]}
    connection = server.connect(body | {"stream": True}, path=PATH)
    assert b"token_ids" in connection.recv(4096) + connection.recv(4096)
    connection.close()
    assert eventually(server.is_idle)


def test_an_engine_error_is_the_last_event_of_a_stream(server):
    body = {"token_ids": [*scripted(text="xyz", fail_at_token=2).encode()], "stream": True}
    text = server.post(body, PATH).text
    assert "[DONE]" not in text
    assert json.loads(text.rstrip().rpartition("data: ")[2])["error"]["code"] == "engine_error"
