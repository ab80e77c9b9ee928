"""Image sizes and token limits that clients request:

applied, refused by name, or reported as ignored.
"""

import json

import pytest
from running_server import Running, chat, image_part, image_url, mock_pipeline, running

from vlmkit.settings.image_tokens import ImageTokens
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit_mock.tokenizer import MockTokenizer

STRICT = {"x-vlmkit-strict": "1"}
IGNORED = "x-vlmkit-ignored"


@pytest.fixture(scope="module")
def sized():
    """A server whose low detail is two tokens; its model's images have four."""
    settings = PipelineSettings(image_tokens=ImageTokens(low=2))
    with running({"mock": mock_pipeline(settings=settings)}) as server:
        yield server


class OneSize(MockTokenizer):
    """A model with one size for all images."""

    @property
    def honours(self):
        return super().honours - {"image_detail", "mm_processor_kwargs"}


@pytest.fixture(scope="module")
def one_size():
    with running({"mock": mock_pipeline(tokenizer=OneSize())}) as server:
        yield server


def part(size=(8, 6), **fields):
    return {"type": "image_url", "image_url": {"url": image_url(*size), **fields}}


def image_chat(*parts, **fields):
    return {"model": "mock", "messages": [{"role": "user", "content": list(parts)}], **fields}


def tokens(server: Running, *parts, **fields):
    answer = server.post(image_chat(*parts, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["image_tokens_each"]


def refused(server: Running, *parts, **fields):
    answer = server.post(image_chat(*parts, **fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["code"]


@pytest.mark.parametrize(
    ("detail", "num_tokens"), [("auto", 4), ("high", 4), ("original", 4), ("low", 2), (None, 4)]
)
def test_the_operator_sets_the_token_count_of_a_detail(sized, detail, num_tokens):
    answer = sized.post(image_chat(part(detail=detail)))

    assert tokens(sized, part(detail=detail)) == [num_tokens]
    assert IGNORED not in answer.headers


def test_the_operators_token_limit_applies_unless_the_request_asks_for_more():
    settings = PipelineSettings(image_tokens=ImageTokens(auto=2, high=3))
    with running({"mock": mock_pipeline(settings=settings)}) as server:
        parts = [part(detail=detail) for detail in ("auto", "high", "low", None)]
        assert tokens(server, *parts) == [2, 3, 4, 2]


def test_max_image_tokens_limits_the_tokens_of_each_image(sized):
    images = [part(), part(detail="low"), part(max_image_tokens=3), part(max_image_tokens=1)]

    assert tokens(sized, *images, max_image_tokens=2) == [2, 2, 3, 1]
    assert tokens(sized, part(), max_image_tokens=500) == [4]


def test_an_image_that_needs_more_tokens_is_refused_with_the_minimum(sized):
    strip = part((50, 6))
    answer = sized.post(image_chat(part(), strip, max_image_tokens=1))

    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "max_image_tokens is 1, and this model needs 2 at least for an image of 50x6",
        "type": "invalid_request_error",
        "param": "messages[0].content[1].image_url.url",
        "code": "image_over_budget",
    }
    assert tokens(sized, part((50, 6), detail="low"), part(max_image_tokens=1)) == [2, 1]


def test_mm_processor_kwargs_of_the_model_are_supported_and_others_refused(sized):
    assert tokens(sized, part(), mm_processor_kwargs={"max_dynamic_patch": 3}) == [3]
    assert tokens(sized, part(), mm_processor_kwargs={}) == [4]
    for limits in ({"max_dynamic_patch": 5}, {"max_dynamic_patch": "3"}, {"secret": 1}):
        assert refused(sized, part(), mm_processor_kwargs=limits) == (
            "mm_processor_kwargs",
            "unsupported_parameter",
        )


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_image_tokens": 0}, "max_image_tokens"),
        ({"max_image_tokens": "2"}, "max_image_tokens"),
        ({"mm_processor_kwargs": [1]}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {str(n): n for n in range(17)}}, "mm_processor_kwargs"),
    ],
)
def test_values_of_the_wrong_kind_are_refused_by_name(sized, fields, name):
    assert refused(sized, part(), **fields)[0] == name


def test_per_image_fields_of_the_wrong_kind_are_refused_by_name(sized):
    location = "messages[0].content[0].image_url"
    for field, value in {"detail": "huge", "max_image_tokens": -1}.items():
        assert refused(sized, part(**{field: value}))[0] == f"{location}.{field}"
    other = refused(sized, part(max_dynamic_patch=2))
    assert other[0] == "messages.content.image_url.max_dynamic_patch"


def test_caches_never_mix_two_details_of_one_image(sized):
    """Neither the feature cache nor the prefix cache mixes them, in any order."""
    salt = {"cache_salt": "details"}
    texts = {}
    for detail in ("low", "high", "low", "high"):
        answer = sized.post(image_chat(part((40, 30), detail=detail), **salt)).json()
        text = answer["choices"][0]["message"]["content"]
        assert texts.setdefault(detail, text) == text
        assert (
            answer["usage"]["prompt_tokens_details"]["image_tokens"]
            == {"low": 2, "high": 4}[detail]
        )
    assert texts["low"].startswith("image 1: 20x15 ")
    assert texts["high"].startswith("image 1: 40x30 ")
    both = sized.post(image_chat(part((40, 30), detail="low"), part((40, 30)), **salt)).json()
    lines = both["choices"][0]["message"]["content"].splitlines()
    assert [line.split()[2] for line in lines[:2]] == ["20x15", "40x30"]


def test_all_routes_with_images_support_the_fields(sized):
    say = [{"role": "user", "content": [part()]}]
    body = {"model": "mock", "messages": say, "max_image_tokens": 2}
    counted = sized.post(body, "/tokenize").json()
    vector = sized.post(body, "/v1/embeddings").json()
    rendered = sized.post(body, "/v1/chat/completions/render").json()

    assert counted["image_tokens_each"] == [2]
    assert vector["usage"]["prompt_tokens_details"]["image_tokens_each"] == [2]
    assert rendered["images"][0]["num_tokens"] == 2


def test_anthropics_api_supports_the_fields(sized):
    source = {"type": "base64", "media_type": "image/png", "data": image_url().partition(",")[2]}
    say = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    body = {"model": "mock", "messages": say, "max_tokens": 20}
    plain = sized.post(body, "/v1/messages/count_tokens").json()
    limits = {"mm_processor_kwargs": {"max_dynamic_patch": 1}}
    answer = sized.post({**body, **limits}, "/v1/messages").json()
    counted = sized.post({**body, "max_image_tokens": 2}, "/v1/messages/count_tokens").json()

    assert answer["usage"]["input_tokens"] == plain["input_tokens"] - 3
    assert counted["input_tokens"] == plain["input_tokens"] - 2


def test_a_model_with_one_image_size_reports_detail_as_ignored(one_size):
    for path in ("/v1/chat/completions", "/tokenize", "/v1/embeddings"):
        answer = one_size.post(image_chat(part(detail="low")), path)
        assert answer.status_code == 200
        assert answer.headers[IGNORED] == "messages.content.image_url.detail"
    named = one_size.post(image_chat(part(detail="high"), never_heard_of=1))
    assert named.headers[IGNORED] == "messages.content.image_url.detail, never_heard_of"
    assert IGNORED not in one_size.post(image_chat(part(detail="auto"))).headers
    strict = one_size.post(image_chat(part(detail="low")), headers=STRICT)
    assert strict.json()["error"]["param"] == "messages.content.image_url.detail"


def test_a_model_with_one_image_size_reports_detail_in_the_responses_api(one_size):
    image = {"type": "input_image", "image_url": image_url(), "detail": "low"}
    body = {"model": "mock", "input": [{"role": "user", "content": [image]}]}
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        answer = one_size.post(body, path)
        assert (answer.status_code, answer.headers[IGNORED]) == (200, "input.content.detail")


def test_a_model_with_one_image_size_refuses_processor_limits_by_name(one_size):
    limits = {"mm_processor_kwargs": {"max_dynamic_patch": 2}}

    assert refused(one_size, part(), **limits) == ("mm_processor_kwargs", "unsupported_parameter")
    assert one_size.post(chat(**limits)).status_code == 200, "there is no image"


def test_capabilities_list_the_size_fields_that_a_model_supports(sized, one_size):
    for server, is_taken in ((sized, True), (one_size, False)):
        (model,) = server.get("/v1/capabilities").json()["models"]
        endpoint = model["endpoints"]["/v1/chat/completions"]
        assert "max_image_tokens" in endpoint["parameters"]
        assert ("mm_processor_kwargs" in endpoint["parameters"]) == is_taken
        assert ("mm_processor_kwargs" in endpoint["refused"]) != is_taken


def test_the_official_client_can_set_a_detail(sized):
    answer = sized.client().chat.completions.create(
        model="mock",
        messages=[{"role": "user", "content": [part(detail="low"), image_part(image_url())]}],
        extra_body={"max_image_tokens": 3},
    )

    assert json.loads(answer.usage.prompt_tokens_details.to_json())["image_tokens_each"] == [2, 3]
