"""The completions API as the official client sees it: prompts, echoes and logprobs."""

import asyncio
import json

import openai
import pytest
from openai.types import Completion, completion_create_params as openai_params
from running_server import chat, eventually, mock_pipeline, running, scripted

import vlmkit
from spelling import SpellingCompiler
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.apis.openai_completions.wire import CompletionRequest

PATH = "/v1/completions"
ENDLESS = scripted(text="x", tokens=4000, latency_s=0.01)


def complete(server, prompt, **options):
    options = {"max_tokens": 50} | options
    return server.client().completions.create(model="mock", prompt=prompt, **options)


def body(prompt="hello", **fields):
    return {"model": "mock", "prompt": prompt} | fields


def events(server, content):
    """Return the decoded events of a stream, without the last."""
    text = server.post(content | {"stream": True}, PATH).text
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def refusal(server, content):
    answer = server.post({"model": "mock"} | content, PATH)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def tokens_of(text):
    return [256 + 1, *text.encode()]  # the mock's first token, and the bytes


def token_name(token_id):
    """Return the API's name of a token of the mock: a byte, or a token without text."""
    if token_id >= 128:
        return "" if token_id >= 256 else f"bytes:\\x{token_id:02x}"
    return chr(token_id)


def test_a_text_is_completed(server):
    answer = complete(server, scripted(text="four"))
    assert [choice.text for choice in answer.choices] == ["four"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert (answer.object, answer.model) == ("text_completion", "mock")
    assert answer.id.startswith("cmpl-")
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


def test_the_default_answer_has_sixteen_tokens(server):
    answer = server.post(body("x" * 40), PATH).json()
    assert answer["choices"][0] == {
        "index": 0, "text": "x" * 16, "logprobs": None, "finish_reason": "length"
    }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_a_list_of_prompts_have_the_order_of_the_prompts(server, stream):
    given = [scripted(text="one"), "two", scripted(text="three" * 3)]
    answer = complete(server, given, n=2, stream=stream)
    texts = [""] * 6
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts == ["one"] * 2 + ["two"] * 2 + ["three" * 3] * 2


def test_token_ids_are_completed_like_their_text(server):
    text = scripted(text="four")
    for prompt in (tokens_of(text), [tokens_of(text)], text, [text]):
        assert [choice.text for choice in complete(server, prompt).choices] == ["four"]
    both = complete(server, [tokens_of(text), tokens_of("two")])
    assert [choice.text for choice in both.choices] == ["four", "two"]


def test_usage_is_the_sum_over_all_prompts(server):
    texts = ["one", scripted(text="four")]
    alone = [complete(server, text).usage for text in texts]
    together = complete(server, texts).usage
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(together, name) == sum(getattr(usage, name) for usage in alone)
    *_, last = events(server, body(texts, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == together.prompt_tokens


def test_reasoning_of_a_plain_prompt_is_text(server):
    thinks = scripted(text="four", reasoning="two and two ")
    assert complete(server, thinks).choices[0].text == "two and two four"


def test_stop_strings_seeds_and_limits_have_an_effect(server):
    assert complete(server, scripted(text="abcdef"), stop="cd").choices[0].text == "ab"
    assert complete(server, scripted(text="abcdef"), max_tokens=2).choices[0].text == "ab"
    options = {"temperature": 2.0, "n": 3, "logit_bias": {"97": 100, "98": 100}}
    one, two = (complete(server, "x", seed=7, **options).choices for _ in range(2))
    assert [choice.text for choice in one] == [choice.text for choice in two]


# Prompts and logprobs.


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_starts_with_the_echoed_prompt(server, stream):
    answer = complete(server, ["né", tokens_of("x")], echo=True, n=2, stream=stream)
    texts = [""] * 4
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts == ["néné", "néné", "xx", "xx"]


def expected_scores(server, text, num_top):
    """Return the Python API's logprobs of each token of a text, given those before it."""
    ids = tokens_of(text)
    request = Request(
        token_ids=ids[:1],
        task="score",
        continuations=[ids[1:]],
        params=SamplingParams(logprobs=True, top_logprobs=num_top),
    )
    return server.runner().submit(request).result().choices[0].samples


def test_an_echo_without_answer_has_the_prompt_logprobs_of_the_python_api(server):
    text = "a né!"
    scores = expected_scores(server, text, 2)
    for stream in (False, True):
        given = body(text, echo=True, logprobs=2, max_tokens=0)
        if stream:
            first, last = events(server, given)
            choice = first["choices"][0]
            assert last["choices"][0]["finish_reason"] == "length"
        else:
            answer = server.post(given, PATH).json()
            choice = answer["choices"][0]
            assert choice["finish_reason"] == "length"
            assert answer["usage"]["prompt_tokens"] == len(tokens_of(text))
            assert answer["usage"]["completion_tokens"] == 0
        assert choice["text"] == text
        columns = choice["logprobs"]
        assert columns["tokens"] == ["", "a", " ", "n", "bytes:\\xc3", "bytes:\\xa9", "!"]
        assert columns["token_logprobs"] == [None, *(sample.logprob for sample in scores)]
        assert columns["text_offset"] == [0, 0, 1, 2, 3, 3, 4]
        assert columns["top_logprobs"][0] is None
        for top, token, sample in zip(
            columns["top_logprobs"][1:], columns["tokens"][1:], scores, strict=True
        ):
            assert top[token] == sample.logprob
            likeliest = {}  # special tokens share the empty text, and the most likely one counts
            for entry in sample.top:
                likeliest.setdefault(token_name(entry.token_id), entry.logprob)
            assert top == likeliest | {token: sample.logprob}
            assert len(sample.top) == 2


def test_logprobs_of_an_echo_cover_prompt_and_answer(server):
    choice = complete(server, scripted(text="é!"), echo=True, logprobs=0).choices[0]
    columns = choice.logprobs
    assert columns.top_logprobs is None
    assert columns.tokens[-3:] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert len(columns.tokens) == len(columns.token_logprobs) == len(columns.text_offset)
    start = len(choice.text) - 2
    assert columns.text_offset[-3:] == [start, start, start + 1]
    assert choice.text.endswith("é!")


def test_a_stream_has_the_same_logprobs_columns_as_a_whole_answer(server):
    given = body(scripted(text="né!"), logprobs=2, max_tokens=9)
    whole = server.post(given, PATH).json()["choices"][0]["logprobs"]
    parts = [event["choices"][0]["logprobs"] for event in events(server, given)]
    for name, column in whole.items():
        assert [entry for part in parts for entry in part[name]] == column


def test_token_ids_are_returned_on_request(server):
    for echo in (False, True):
        given = body(["one", "two"], return_token_ids=True, echo=echo)
        whole = server.post(given, PATH).json()["choices"]
        assert [each["prompt_token_ids"] for each in whole] == [tokens_of("one"), tokens_of("two")]
        assert [each["token_ids"] for each in whole] == [[*b"one", 256], [*b"two", 256]]
        prompts, ids = [None, None], [[], []]
        for event in events(server, given):
            (choice,) = event["choices"]
            prompts[choice["index"]] = choice.get("prompt_token_ids") or prompts[choice["index"]]
            ids[choice["index"]] += choice.get("token_ids", [])
        assert prompts == [tokens_of("one"), tokens_of("two")]
        assert ids == [[*b"one", 256], [*b"two", 256]]


def test_special_tokens_of_the_prompt_can_be_left_out(server):
    answer = server.post(body("ab", add_special_tokens=False, return_token_ids=True), PATH).json()
    assert answer["choices"][0]["prompt_token_ids"] == [97, 98]


@pytest.mark.parametrize("stream", [False, True])
def test_each_answer_matches_the_requested_constraint(stream):
    pipeline = mock_pipeline(constraint=SpellingCompiler)
    with running({"mock": pipeline}) as server:
        options = {"extra_body": {"guided_choice": ["yes", "no"]}, "stream": stream}
        answer = complete(server, ["what?", tokens_of("is it?")], **options)
        texts = ["", ""]
        for part in answer if stream else [answer]:
            for choice in part.choices:
                texts[choice.index] += choice.text
        assert set(texts) <= {"yes", "no"}


# Formats and refusals.


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"n": 2, "echo": True}])
def test_answers_and_events_match_openais_types(server, fields):
    Completion.model_validate(server.post(body(**fields), PATH).json(), strict=True)
    for event in events(server, body(**fields)):
        event["choices"] = [each | {"finish_reason": "stop"} for each in event["choices"]]
        Completion.model_validate(event, strict=True)


def test_every_parameter_of_openais_client_is_a_field():
    names = set(openai_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert names <= set(CompletionRequest.__struct_fields__)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["x", [99_999]]}, "prompt[1]"),
        ({"prompt": ["x"] * 65, "n": 2}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "logprobs": -1}, "logprobs"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"prompt": "x", "top_logprobs": 1}, "top_logprobs"),
        ({"prompt": "x", "response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": "x", "guided_regex": "a"}, "guided_regex"),
        ({"prompt": "x", "use_beam_search": True}, "use_beam_search"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "x", "temperature": 3}, "temperature"),
        ({"prompt": ["y", "x" * 100_000], "echo": True, "logprobs": 1}, "prompt[1]"),
    ],
)
def test_unsupported_fields_are_refused_by_name(server, fields, param):
    assert refusal(server, fields)["param"] == param
    if "stream_options" not in fields:
        assert refusal(server, fields | {"stream": True})["param"] == param


def test_values_without_effect_are_accepted(server):
    fields = {"suffix": "", "best_of": 2, "n": 2, "user": "u", "echo": False}
    assert server.post(body(**fields), PATH).status_code == 200


# Admission, limits and cancellation, as for chats.


def test_unknown_keys_are_reported_or_refused(server):
    for stream in (False, True):
        answer = server.post(body(flavour=1, stream=stream), PATH)
        assert answer.headers["x-vlmkit-ignored"] == "flavour"
    strict = {"x-vlmkit-strict": "1"}
    assert server.post(body(flavour=1), PATH, headers=strict).status_code == 400


def test_a_disconnect_aborts_all_prompts_of_the_request():
    with running({"mock": mock_pipeline(max_sequences=2)}) as server:
        for stream in (False, True):
            given = body([ENDLESS, ENDLESS, ENDLESS], max_tokens=4000, stream=stream)
            connection = server.connect(given, path=PATH)
            assert eventually(lambda: server.runner().stats().num_running == 2)
            connection.close()
            assert eventually(server.is_idle)


def test_a_failing_prompt_ends_the_whole_request_at_once_with_its_error():
    fails = scripted(text="abc", fail_at_token=1)
    with running() as server:
        with pytest.raises(openai.InternalServerError):
            complete(server, [ENDLESS, fails], max_tokens=4000)
        assert eventually(server.is_idle)
        with pytest.raises(openai.APIError):
            list(complete(server, [ENDLESS, fails], max_tokens=4000, stream=True))
        assert eventually(server.is_idle)
        assert server.runner().stats().counters["num_aborted"] == 2  # not run to the end


def test_a_request_that_does_not_fit_the_queue_releases_all_its_prompts():
    with running({"mock": mock_pipeline(max_sequences=1, max_waiting=1)}) as server:
        refused = server.post(body([ENDLESS] * 4, max_tokens=4000), PATH)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert eventually(server.is_idle)


def test_a_completion_prompt_is_not_rendered_as_a_chat(server):
    assert complete(server, "hello").choices[0].text == "hello"
    assert server.post(chat("hello")).json()["choices"][0]["message"]["content"] == "hello"
    token_ids = asyncio.run(server.runner().atokenize(Request(text="hello"))).token_ids
    assert list(token_ids) == tokens_of("hello")
    assert vlmkit.Model(server.runner()).generate("hello").text == "hello"
