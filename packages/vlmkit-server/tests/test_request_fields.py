"""Request fields of a plugin, and parameters that a sampler ignores, over HTTP.

The server is the real command with a plugin from a file, and the clients are the official ones.
"""

import json
import sys
import textwrap
from pathlib import Path

import openai
import pytest
from dry_plugin import DRY, Dry, DrySampler
from running_server import eventually, process, scripted

import vlmkit
from vlmkit.errors import RequestError
from vlmkit_testing import SamplerContract

PLUGIN = Path(__file__).with_name("dry_plugin.py")
CONFIG = textwrap.dedent("""
    plugins = ["{plugin}"]
    [[models]]
    model = "mock"
    name = "dry"
    sampler.use = "dry"
    aliases = ["other", {{name = "hard", fields = {{dry = {hard}}}}}]
    [[models]]
    model = "mock"
    name = "plain"
    scheduler.use = "patient"
    [[models]]
    model = "mock"
    name = "greedy"
    sampler.use = "greedy"
""")
REPEATS = scripted(text="abcdef", tokens=60)
HARD = {"multiplier": 50.0, "allowed_length": 4}
TOML_HARD = "{multiplier = 50.0, allowed_length = 4}"
MESSAGES = [{"role": "user", "content": REPEATS}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fields")
    (folder / "vlmkit.toml").write_text(CONFIG.format(plugin=PLUGIN, hard=TOML_HARD))
    arguments = ["serve", "--config", "vlmkit.toml", "--port", "0"]
    with process([sys.executable, "-m", "vlmkit", *arguments], folder) as made:
        assert eventually(lambda: made.status() == 200)
        yield made


def ask(server, model="dry", text=REPEATS, **options):
    return server.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], **options
    )


def answer_text(answer):
    return answer.choices[0].message.content


def refused(server, **options):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, **options)
    return caught.value


def post(server, path, **body):
    answer = server.http.post(f"{server.url}/v1/{path}", json=body)
    return answer, answer.json()


def repeats(text, num=10):
    """Return whether a long run repeats; short runs of replacement characters always do."""
    return any(text[i : i + num] in text[i + 1 :] for i in range(len(text) - num))


# A sampler that reads its field.


@pytest.mark.slow  # the contract of DRY runs in the tests of vlmkit-testing
class TestDry(SamplerContract):
    def make(self):
        return DrySampler(frozenset())


def test_an_alias_sets_the_field_for_every_api_and_refuses_other_values(server):
    dry = answer_text(ask(server, extra_body={"dry": HARD}))
    assert answer_text(ask(server, "hard")) == dry
    assert answer_text(ask(server, "hard", extra_body={"dry": HARD})) == dry
    assert answer_text(ask(server, "other")) == "abcdef" * 10
    messages = [{"role": "user", "content": REPEATS}]
    _, message = post(server, "messages", model="hard", max_tokens=60, messages=messages)
    assert message["content"][0]["text"] == dry
    _, response = post(server, "responses", model="hard", input=REPEATS)
    assert response["output"][0]["content"][0]["text"] == dry
    error = refused(server, model="hard", extra_body={"dry": {"multiplier": 1}})
    assert (error.param, error.status_code) == ("dry", 400)
    assert "dry is set by the model name 'hard'" in error.message
    listed = {model.id for model in server.client.models.list()}
    assert {"dry", "other", "hard"} <= listed


def test_a_plugin_field_changes_only_the_answer_that_uses_it(server):
    plain = answer_text(ask(server))
    assert plain == "abcdef" * 10
    dry = answer_text(ask(server, extra_body={"dry": HARD}))
    assert dry.startswith("abcd")  # these tokens repeat the prompt within the allowed length
    assert not repeats(dry)
    assert answer_text(ask(server)) == plain


def test_fields_of_concurrent_requests_do_not_mix(server, pool):
    bodies = [{"dry": HARD} if number % 2 else {} for number in range(8)]
    answers = list(pool.map(lambda body: answer_text(ask(server, extra_body=body)), bodies))
    assert len(set(answers[::2])) == len(set(answers[1::2])) == 1
    assert answers[0] != answers[1]


def test_a_sequence_breaker_ends_a_repeated_run(server):
    lines = scripted(text="abcdefg\n", tokens=64)
    plain = ask(server, text=lines)
    broken = ask(server, text=lines, extra_body={"dry": HARD | {"allowed_length": 8}})
    assert answer_text(broken) == answer_text(plain)  # a run of eight would cross a line break
    assert answer_text(ask(server, text=lines, extra_body={"dry": HARD})) != answer_text(plain)


def test_a_plugin_field_has_the_same_effect_in_each_api_and_in_streams(server):
    expected = answer_text(ask(server, extra_body={"dry": HARD}))
    stream = ask(server, extra_body={"dry": HARD}, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == expected
    _, answer = post(server, "messages", model="dry", max_tokens=100, messages=MESSAGES, dry=HARD)
    assert answer["content"][0]["text"] == expected
    response = server.client.responses.create(model="dry", input=REPEATS, extra_body={"dry": HARD})
    assert response.output_text == expected
    response = server.client.completions.create(
        model="dry", prompt=REPEATS, max_tokens=100, extra_body={"dry": HARD}
    )
    assert response.choices[0].text.startswith("abcd")  # another prompt, and so other logits
    assert not repeats(response.choices[0].text)


def test_a_plugin_field_has_the_same_effect_in_the_python_api():
    sections = {"plugins": {"files": [str(PLUGIN)]}, "sampler": {"use": "dry"}}
    with vlmkit.load("mock", **sections) as model:
        dry = model.generate(REPEATS, fields={"dry": HARD}).text
        assert not repeats(dry)
        assert model.generate(REPEATS, fields={"dry": Dry(**HARD)}).text == dry
        assert "".join(model.stream(REPEATS, fields={"dry": HARD})) == dry
        assert set(model.facts.request_fields) == {"dry"}
        for fields, param in (
            ({"dry": {"base": 9}}, "dry.base"),
            ({"dry": Dry(base=0.5)}, "dry.base"),
            ({"dry": object()}, "dry"),
            ({"wet": {}}, "wet"),
        ):
            with pytest.raises(RequestError) as caught:
                model.generate("x", fields=fields)
            assert caught.value.param == param


# Invalid values.


@pytest.mark.parametrize(
    ("value", "param", "problem"),
    [
        ({"multiplier": 101}, "dry.multiplier", "Expected `float` <= 100.0"),
        ({"base": "secret"}, "dry.base", "Expected `float`, got `str`"),
        ({"allowed_length": 1.5}, "dry.allowed_length", "Expected `int`, got `float`"),
        ({"secret": 1}, "dry", "dry has multiplier, base, allowed_length"),
        ([1], "dry", "Expected `object`, got `array`"),
        (True, "dry", "Expected `object`, got `bool`"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_location(server, value, param, problem):
    error = refused(server, extra_body={"dry": value})
    assert error.param == param
    assert error.body["message"].startswith(f"{param}: ")
    assert problem in error.body["message"]
    assert "secret" not in error.body["message"]


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        (b'{"multiplier": 1e999}', "dry", "invalid_request"),
        (b'{"multiplier": ' + b"9" * 10**6 + b"}", None, "body_too_complex"),
        (b'{"\xff": 1}', None, "invalid_json"),
        (b'["\\ud800"]', None, "invalid_json"),
    ],
)
def test_invalid_numbers_and_texts_in_a_plugin_field_are_refused(server, value, param, code):
    body = json.dumps({"model": "dry", "messages": MESSAGES}).encode()[:-1]
    answer = server.post(body + b', "dry": ' + value + b"}")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def test_null_means_that_a_plugin_field_is_not_set(server):
    for model in ("dry", "plain"):
        raw = server.client.chat.completions.with_raw_response.create(
            model=model, messages=MESSAGES, extra_body={"dry": None, "deadline": None}
        )
        assert "x-vlmkit-ignored" not in raw.headers
        assert answer_text(raw.parse()) == "abcdef" * 10


def test_a_model_without_support_refuses_a_field_that_changes_the_answer(server):
    for value in ({}, HARD, "anything"):
        error = refused(server, model="plain", extra_body={"dry": value})
        assert (error.param, error.code) == ("dry", "unsupported_parameter")
        assert error.body["message"] == "dry is taken by no component of this model"


def test_a_model_without_support_ignores_and_reports_a_field_without_effect(server):
    raw = server.client.chat.completions.with_raw_response
    extra = {"deadline": {"seconds": 3}}
    taken = raw.create(model="plain", messages=MESSAGES, extra_body=extra)
    assert "x-vlmkit-ignored" not in taken.headers
    idle = raw.create(model="dry", messages=MESSAGES, extra_body=extra)
    assert idle.headers["x-vlmkit-ignored"] == "deadline"
    error = refused(server, extra_body=extra, extra_headers={"x-vlmkit-strict": "1"})
    assert error.param == "deadline"
    assert refused(server, model="plain", extra_body={"deadline": {}}).param == "deadline"


def test_a_misspelt_plugin_field_is_reported_like_any_unknown_key(server):
    raw = server.client.chat.completions.with_raw_response.create(
        model="dry", messages=MESSAGES, extra_body={"drye": HARD}
    )
    assert raw.headers["x-vlmkit-ignored"] == "drye"


def test_token_counting_reports_the_plugin_field_as_ignored(server):
    answer, _ = post(server, "messages/count_tokens", model="dry", messages=MESSAGES, dry=HARD)
    assert (answer.status_code, answer.headers["x-vlmkit-ignored"]) == (200, "dry")


# Reports.


def test_capabilities_list_plugin_fields_and_parameters_ignored_by_the_sampler(server):
    models = {m["id"]: m for m in server.http.get(f"{server.url}/v1/capabilities").json()["models"]}
    schema = models["dry"]["request_fields"]["dry"]
    assert schema["$defs"]["Dry"]["properties"]["base"]["maximum"] == 8
    assert models["dry"]["sampler"] == {"ignores": [], "is_exact": True}
    assert list(models["plain"]["request_fields"]) == ["deadline"]
    assert "temperature" in models["greedy"]["sampler"]["ignores"]
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"):
        ends = {name: model["endpoints"][path] for name, model in models.items()}
        assert "dry" in ends["dry"]["parameters"]
        assert "dry" in ends["plain"]["refused"]
        assert "deadline" in ends["plain"]["parameters"]
        assert "deadline" not in ends["dry"]["refused"] + ends["dry"]["parameters"]
        assert "temperature" in ends["greedy"]["refused"]
        assert "temperature" in ends["dry"]["parameters"]
    assert "dry" not in models["dry"]["endpoints"]["/v1/embeddings"]["refused"]


def test_the_openapi_document_describes_plugin_fields(server):
    document = server.http.get(f"{server.url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    for body in ("ChatRequest", "MessagesRequest", "ResponsesRequest", "CompletionRequest"):
        (one, null) = schemas[body]["properties"]["dry"]["anyOf"]
        assert null == {"type": "null"}
        name = one["$ref"].removeprefix("#/components/schemas/")
        assert schemas[name]["properties"]["multiplier"]["maximum"] == 100
    assert "dry" not in schemas["EmbeddingRequest"]["properties"]
    assert "#/$defs/" not in json.dumps(document)


# Parameters that a sampler ignores.


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 0.7), ("top_p", 0.5), ("logit_bias", {"7": 1}), ("frequency_penalty", 1)],
)
def test_a_parameter_that_the_sampler_ignores_is_refused(server, field, value):
    error = refused(server, model="greedy", **{field: value})
    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert error.body["message"] == f"{field} is not followed by this model's sampler"


def test_a_neutral_value_of_an_ignored_parameter_is_accepted(server):
    answer = ask(server, model="greedy", temperature=0, top_p=1, seed=7, logit_bias={})
    assert answer_text(answer) == "abcdef" * 10


def test_a_component_reads_the_struct_of_a_field():
    from vlmkit_testing import new_sequence

    assert DRY.of(new_sequence()) is None
    assert DRY.of(new_sequence(fields={"dry": Dry()})) == Dry()
