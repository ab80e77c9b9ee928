"""Answers of the mock under a constraint: its script if allowed, or else a short answer."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

import vlmkit
from vlmkit.model import Model
from vlmkit.types.constraint import JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit.types.prompt_options import PromptOptions

pytest.importorskip("llguidance")

ORDER = JsonSchema.of(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer", "minimum": 7},
            "tags": {"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 2},
            "day": {"type": "string", "format": "date"},
            "more": {"type": "object"},
            "list": {"type": "array", "items": {"type": "number"}},
            "note": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        },
        "required": ["name", "count", "tags", "day", "more", "list"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with vlmkit.load("mock") as loaded:
        yield loaded


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_schema_is_answered_by_a_short_value(model: Model, seed: int, temperature: float) -> None:
    done = model.generate("hello", constraint=ORDER, temperature=temperature, seed=seed)
    said = json.loads(done.text)
    assert done.choices[0].finish_reason == "stop"
    assert (said["name"], said["more"], said["list"]) == ("", {}, [])
    assert [len(tag) for tag in said["tags"]] == [3, 3]
    assert 7 <= said["count"] < 1000
    assert "note" not in said


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (JsonObject(), "{}"),
        (JsonSchema.of({"type": "string"}), '""'),
        (JsonSchema.of({"type": "array"}), "[]"),
        (JsonSchema.of({"type": "integer"}), "0"),
        (OneOf(("no",)), "no"),
        (Regex("[a-z]{5}x*"), "hello"),
        (Regex("[a-m]*(0|zz)"), "hell0"),
        (Lark('start: item+\nitem: "ab" | "cde"'), "ab"),
    ],
)
def test_an_answer_off_its_script_ends_as_soon_as_allowed(
    model: Model, constraint: object, expected: str
) -> None:
    done = model.generate("hello", constraint=constraint, temperature=0.0)
    assert (done.text, done.choices[0].finish_reason) == (expected, "stop")


def test_a_script_that_the_constraint_allows_is_generated(model: Model) -> None:
    text = '{"name": "a }]\\" b", "count": 12, "tags": ["abc", "def"], "day": "2024-05-06", '
    text += '"more": {"a": [1, 2]}, "list": [3.5]}'
    script = json.dumps({"mock": {"text": text}})
    assert model.generate(script, constraint=ORDER).text == text


TREE = {
    "type": "object",
    "properties": {
        "left": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "right": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["left", "right"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {
        "op": {"enum": ["+", "-"]},
        "terms": {"type": "array", "items": {"$ref": "#/$defs/term"}, "minItems": 2},
    },
    "required": ["op", "terms"],
    "additionalProperties": False,
    "$defs": {"term": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/number"}]}},
}
SUM["$defs"]["number"] = {
    "type": "object",
    "properties": {"number": {"type": "number"}},
    "required": ["number"],
    "additionalProperties": False,
}
SELECT = 'start: "SELECT " NAME (", " NAME)* " FROM " NAME\nNAME: /[a-z]+/'
XML = 'start: "<" NAME ">" (start | /[a-z]*/) "</" NAME ">"\nNAME: /[a-z]+/'


def text_like(pattern: str) -> JsonSchema:
    return JsonSchema.of({"type": "array", "items": {"pattern": pattern}, "minItems": 1})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("constraint", "most"),
    [
        (JsonSchema.of(TREE), 60),
        (JsonSchema.of(SUM), 600),
        (JsonSchema.of({"type": "number", "exclusiveMinimum": 0}), 10),
        (JsonSchema.of({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}), 10),
        (JsonSchema.of({"type": "array", "items": {"minimum": 10}, "minItems": 50}), 500),
        (text_like(r"^\S+@\S+\.\S+$"), 100),
        (text_like(r"^[a-z][a-z0-9+.-]*:.+$"), 100),
        (text_like(r"^[A-Za-z_]\w*\(\)$"), 100),
        (text_like(r"^[^\n]+\n\n$"), 400),
        (text_like(r"^<[a-z]+>.*</[a-z]+>$"), 400),
        (Regex(r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}"), 200),
        (Regex(r"https?://[^\s/]+\.[a-z]+(/[^\s]*)?"), 400),
        (Regex(r"\+?\d{1,3}[-. ]\d{3}[-. ]\d{4}"), 20),
        (Regex(r"\d+(,\d{3})*\.\d\d"), 40),
        (Regex(r"-?\d+\.\d+"), 20),
        (Regex(r"[A-Z][a-z]+ [A-Z][a-z]+"), 40),
        (Regex(r"\w+( \w+)*\."), 100),
        (Regex(r"\{[^}]*\}"), 40),
        (Regex(r"<[a-z]+>.*</[a-z]+>"), 400),
        (Regex(r".+@.+"), 200),
        (Lark(SELECT), 400),
        (Lark(XML), 100),
        (Lark('start: word+ "."\nword: /[a-z]+/ " "'), 400),
        (Lark('start: expr\nexpr: "(" expr "+" expr ")" | /[0-9]/'), 10),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_answer_ends_even_if_it_must_not_end_immediately(
    model: Model, constraint: object, most: int, temperature: float
) -> None:
    for prompt in ("Please write one.", "hello"):
        done = model.generate(
            prompt, constraint=constraint, temperature=temperature, seed=1, max_tokens=2000
        )
        assert done.choices[0].finish_reason == "stop", done.text[:100]
        assert done.usage.completion_tokens <= most, done.text[:100]


def test_an_answer_leaves_its_script_if_repetition_cannot_end(model: Model) -> None:
    done = model.generate("hello", constraint=Regex("[a-z]+[0-9]"), temperature=0.0)
    assert done.choices[0].finish_reason == "stop"
    assert done.text.startswith("hellohello")
    assert done.text[-1] in "0123456789"


def test_reasoning_ends_where_a_tool_must_be_called(model: Model) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    request = replace(
        model.request("hello"),
        tools=(tool,),
        tool_choice="required",
        options=PromptOptions(chat_template_kwargs={"enable_thinking": True}),
    )
    (choice,) = model.submit(request).result().choices
    assert choice.finish_reason == "stop"
    assert [call.name for call in choice.tool_calls] == ["look"]
    assert choice.reasoning.startswith("hello")
