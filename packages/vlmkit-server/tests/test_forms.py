"""Structured output: constraint fields of OpenAI's API and of other servers."""

import json

import pytest
from running_server import chat, mock_pipeline, running

from spelling import Spelling, SpellingCompiler
from vlmkit.errors import RequestError
from vlmkit.types.constraint import JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit_server.apis.openai_chat.wire import CHAT
from vlmkit_server.wire.answer_forms import requested_form

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
NAMED = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


def form_of(**fields):
    return requested_form(CHAT.read(json.dumps(chat(**fields)).encode())[0])


@pytest.mark.parametrize(
    ("fields", "field", "constraint"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format", JsonObject()),
        ({"response_format": NAMED}, "response_format", JsonSchema.of(SCHEMA)),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}},
         "response_format", JsonObject()),
        ({"guided_json": SCHEMA}, "guided_json", JsonSchema.of(SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, "guided_json", JsonSchema(json.dumps(SCHEMA))),
        ({"guided_regex": "a+"}, "guided_regex", Regex("a+")),
        ({"guided_choice": ["a", "b"]}, "guided_choice", OneOf(("a", "b"))),
        ({"guided_grammar": "start: A"}, "guided_grammar", Lark("start: A")),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json",
         JsonSchema.of(SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex", Regex("a+")),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice", OneOf(("a",))),
        ({"structured_outputs": {"grammar": "start: A"}}, "structured_outputs.grammar",
         Lark("start: A")),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object",
         JsonObject()),
    ],
)  # fmt: skip
def test_each_constraint_field_is_converted_to_its_constraint(fields, field, constraint):
    assert form_of(**fields) == (field, constraint)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"guided_json": None},
        {"structured_outputs": {"json": None}},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"json_object": False}},
    ],
)
def test_fields_without_restriction_have_no_constraint(fields):
    assert form_of(**fields) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": [1]}, "guided_json"),
        ({"structured_outputs": {"json": 7}}, "structured_outputs.json"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": "b"}}},
         "response_format"),
        ({"guided_regex": "x" * 70_000}, "guided_regex"),
    ],
)  # fmt: skip
def test_an_invalid_constraint_is_refused_by_field_name(fields, param):
    with pytest.raises(RequestError) as caught:
        form_of(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("schema", [b'{"const": "\xff"}', b'{"const": 1e999}', b'"\xff"'])
def test_a_schema_that_cannot_be_decoded_is_refused(schema):
    body = json.dumps(chat(guided_json={"here": 1})).encode().replace(b'{"here": 1}', schema)
    with pytest.raises(RequestError, match="a schema must be JSON") as caught:
        requested_form(CHAT.read(body)[0])
    assert caught.value.param == "guided_json"


@pytest.mark.parametrize("field", ["guided_json", "structured_outputs", "response_format"])
def test_a_schema_over_the_length_limit_is_refused_before_decoding(field, monkeypatch):
    schema = {"properties": {f"key {number}": {} for number in range(50_000)}}
    held = {
        "guided_json": schema,
        "structured_outputs": {"json": schema},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }
    body, _ = CHAT.read(json.dumps(chat(**{field: held[field]})).encode())
    monkeypatch.setattr("msgspec.json.decode", None)
    with pytest.raises(RequestError, match="a schema is over the limit of 65536 characters"):
        requested_form(body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {"structural_tag": {"a": 1}}}, "structured_outputs.structural_tag"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ],
)
def test_an_unsupported_constraint_field_is_refused_by_name(server, fields, param):
    refused = server.post(chat(**fields))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("fields", [{"response_format": NAMED}, {"guided_choice": ["a"]}])
def test_a_constraint_without_a_compiler_is_refused_with_what_to_install(server, fields):
    refused = server.post(chat(**fields))
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (*fields, "invalid_constraint")
    assert "install vlmkit-guidance" in error["message"]


def test_an_answer_matches_its_constraint():
    with (
        mock_pipeline(constraint=SpellingCompiler) as pipeline,
        running({"mock": pipeline}) as server,
    ):
        client = server.client().chat.completions
        sent = {"model": "mock", "messages": [{"role": "user", "content": "which?"}]}
        for fields in (
            {"guided_choice": ["tree", "trunk"]},
            {"structured_outputs": {"choice": ["tree", "trunk"]}},
        ):
            choice = client.create(**sent, extra_body=fields).choices[0]
            assert choice.message.content in ("tree", "trunk")
            assert choice.finish_reason == "stop"
            chunks = client.create(**sent, extra_body=fields, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert text == choice.message.content
        refused = server.post(chat(response_format=NAMED))
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "response_format"


class Breaks(Spelling):
    """Fails after two tokens, with a text that no client may read."""

    def fill(self, mask):
        if len(self.rests) > 2:
            raise RuntimeError("it said: tree")
        super().fill(mask)

    def forced(self):
        return []


class BreakingCompiler(SpellingCompiler):
    matcher = Breaks


def test_a_failing_constraint_ends_only_its_own_request():
    with (
        mock_pipeline(constraint=BreakingCompiler) as pipeline,
        running({"mock": pipeline}) as server,
    ):
        bound = {"guided_choice": ["tree", "trunk"]}
        failed = server.post(chat("which?", **bound))
        assert failed.status_code == 500
        error = failed.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_error")
        assert "it said" not in failed.text
        streamed = server.post(chat("which?", stream=True, **bound))
        first, *_, last = [event for event in streamed.text.split("\n\n") if event]
        assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["role"]
        assert json.loads(last.removeprefix("data: ")) == failed.json()
        own = server.post(chat("which?", stream=True, max_tokens=9, **bound), "/v1/messages")
        assert own.text.rpartition("event: ")[2].startswith("error\n")
        assert server.post(chat("hello")).status_code == 200
        assert server.is_idle()
