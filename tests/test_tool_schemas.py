"""Tool schemas as programs generate them: none fails a chat, and strict ones are enforced."""

import json
import random
import re
import subprocess
import sys
import time
from collections import Counter

import httpx
import jsonschema
import numpy as np
import pytest

pytest.importorskip("llguidance")
pytestmark = pytest.mark.posix

from tool_schemas import KEYWORDS, tool_schemas  # noqa: E402
from vlmkit.errors import ConstraintError  # noqa: E402
from vlmkit.interfaces.constraint import Vocabulary  # noqa: E402
from vlmkit.running.constraints.limits import check_limits  # noqa: E402
from vlmkit.running.constraints.relaxation import compile_relaxed  # noqa: E402
from vlmkit.running.constraints.schema_reduction import rewritten  # noqa: E402
from vlmkit.types.constraint import JsonSchema  # noqa: E402
from vlmkit_guidance.compiler import GuidanceCompiler  # noqa: E402

TOOLS_EACH = 6
TOO_COMPLEX = ("loop", "optional ones")  # for a call that is required
PLACE = re.compile(r"at #(\S*?)(?=, |\s|$)")


@pytest.fixture(scope="module")
def schemas():
    return list(tool_schemas())


@pytest.fixture(scope="module")
def sample(schemas):
    return random.Random(0).sample(schemas, 60)


def test_there_are_enough_schemas(schemas):
    assert len(schemas) >= 500
    assert len({json.dumps(schema) for _, schema in schemas}) >= 500


@pytest.fixture(scope="module")
def post(tmp_path_factory):
    """Sends a chat to a process that serves the mock, and returns the response."""
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    with log.open("wb") as said, subprocess.Popen(command, stderr=said) as process:
        try:
            deadline = time.monotonic() + 600
            while "'mock' is ready\n" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            address = re.search(r"listening on (\S+)", log.read_text())[1]
            with httpx.Client(base_url=address, timeout=600) as client:

                def send(*schemas, strict=None, **fields):
                    body = {
                        "model": "mock",
                        "messages": [{"role": "user", "content": "hi"}],
                        "max_tokens": 3,
                    }
                    if schemas:
                        body["tools"] = [
                            tool(f"t{number}", schema, strict)
                            for number, schema in enumerate(schemas)
                        ]
                    return client.post("/v1/chat/completions", json=body | fields)

                send.counted = lambda: client.get("/readyz").json()["num_unconstrained"]
                yield send
            told = log.read_text()
            assert "%s" not in told
            assert "ERROR" not in told
            assert "nowhere" not in told, "a client's text is in the log"
        finally:
            process.kill()


def tool(name, schema, strict=None):
    function = {"name": name, "parameters": schema}
    return {
        "type": "function",
        "function": function | ({} if strict is None else {"strict": strict}),
    }


def check_chats(post, schemas):
    for start in range(0, len(schemas), TOOLS_EACH):
        lot = schemas[start : start + TOOLS_EACH]
        response = post(*(schema for _, schema in lot))
        assert response.status_code == 200, (response.text, [name for name, _ in lot])
        header = response.headers.get("x-vlmkit-unconstrained", "")
        assert len(header) < 1024
        for part in filter(None, header.split(", ")):
            assert re.fullmatch(r"t\d#[!-~]*|\d+ more", part), header


def test_a_chat_with_sampled_tools_is_answered(post, sample):
    check_chats(post, sample)


@pytest.mark.slow
def test_a_chat_with_any_of_the_tools_is_answered(post, schemas):
    check_chats(post, schemas)


def check_short_answers(post, schemas):
    """Check that the mock answers within each schema, and calls each tool, before its bound."""
    for name, schema in schemas:
        for fields in ({"response_format": form(schema)}, {"tool_choice": "required"}):
            tools = () if "response_format" in fields else (schema,)
            response = post(*tools, max_tokens=1500, temperature=0, **fields)
            if response.status_code == 400:
                assert "response_format" in fields or name in TOO_COMPLEX, (name, response.text)
                continue
            (choice,) = response.json()["choices"]
            assert choice["finish_reason"] == ("tool_calls" if tools else "stop"), name
            calls = choice["message"].get("tool_calls")
            json.loads(calls[0]["function"]["arguments"] if tools else choice["message"]["content"])


def test_the_mock_generates_a_short_value_that_matches_a_schema(post, sample):
    check_short_answers(post, sample)


@pytest.mark.slow
def test_the_mock_generates_a_short_value_that_matches_any_schema(post, schemas):
    check_short_answers(post, schemas)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_unenforced_parts_are_reported_by_tool_and_path(post, choice):
    path = {"type": "string", "format": "path"}
    tools = [
        {"type": "object", "properties": {"a": path, "b/c": KEYWORDS["look-ahead"]}},
        {"type": "object", "properties": {"ok": {"type": "integer"}}},
        {"type": "object", "properties": {"é": KEYWORDS["malformed pattern"]}},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": path}},
    ]
    response = post(*tools, tool_choice=choice)
    assert response.status_code == 200
    assert response.headers["x-vlmkit-unconstrained"].split(", ") == [
        "t0#/properties/a/format",
        "t0#/properties/b~1c/pattern",
        "t2#/properties/%C3%A9/pattern",
        "t3#/$defs/X/format",
    ]


def test_schemas_that_are_enforced_are_not_in_the_header(post):
    before = post.counted()
    response = post({"type": "object", "properties": {"ok": {"type": "integer", "minimum": 3}}})
    assert "x-vlmkit-unconstrained" not in response.headers
    assert post.counted() == before


def test_requests_with_partly_enforced_schemas_are_counted(post):
    before = post.counted()
    part = {"type": "object", "properties": {"a": {"type": "string", "format": "path"}}}
    for tools, fields in (((part, part), {}), ((), {"response_format": form(part)})):
        for stream in (False, True):
            response = post(*tools, stream=stream, **fields)
            assert "x-vlmkit-unconstrained" in response.headers
    assert post.counted() == before + 4


def test_many_unenforced_parts_are_reported_as_a_count(post):
    path = {"type": "string", "format": "path"}
    response = post({"type": "object", "properties": {f"option_{n}": path for n in range(200)}})
    header = response.headers["x-vlmkit-unconstrained"]
    assert len(header) < 1024
    assert re.search(r", \d+ more$", header)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("format path", "format"),
        ("uniqueItems", "uniqueItems"),
        ("not", "not"),
        ("contains", "contains"),
        ("if", "if"),
        ("look-ahead", "pattern"),
        ("external $ref", "$ref"),
        ("malformed pattern", "pattern"),
        ("large multipleOf", "multipleOf"),
        ("overlapping oneOf", "oneOf"),
    ],
)
def test_a_strict_tool_is_rejected_with_its_name_and_path(post, name, path):
    fine = {"type": "object", "properties": {"ok": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"value": KEYWORDS[name]}}
    response = post(fine, schema, strict=True)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools")
    assert "'t1'" in error["message"]
    assert f"#/properties/value/{path}" in error["message"]


def form(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, **more}}


@pytest.mark.parametrize("name", ["format path", "uniqueItems", "not", "contains", "look-ahead"])
def test_a_response_schema_loses_only_narrowing_keywords_unless_strict(post, name):
    schema = {"type": "object", "properties": {"value": KEYWORDS[name]}, "required": ["value"]}
    response = post(response_format=form(schema))
    assert response.status_code == 200
    assert response.headers["x-vlmkit-unconstrained"].startswith("#/properties/value/")
    refused = post(response_format=form(schema, strict=True))
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "response_format")
    assert "at #/properties/value/" in error["message"]


@pytest.mark.parametrize("name", ["if", "external $ref", "$dynamicRef", "another type"])
def test_a_response_schema_keeps_its_shape_or_is_rejected(post, name):
    schema = {"type": "object", "properties": {"value": KEYWORDS[name]}}
    refused = post(response_format=form(schema))
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "response_format")
    assert "at #/properties/value/" in error["message"]


THREE = {"type": "object", "properties": {"a": {"const": 3}}, "required": ["a"]}


@pytest.mark.parametrize(
    "asked",
    [
        {"type": "json_object", "schema": THREE},
        {"type": "json_schema", "schema": THREE},
        {"type": "json_schema", "name": "three", "schema": THREE, "strict": True},
        {"type": "json_schema", "json_schema": {"schema": THREE}},
    ],
)
def test_a_schema_is_enforced_anywhere_in_a_response_format(post, asked):
    closed = THREE | {"additionalProperties": False}
    asked = json.loads(json.dumps(asked).replace(json.dumps(THREE), json.dumps(closed)))
    answer = post(response_format=asked, max_tokens=60).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"a": 3}


# What is compiled strictly


@pytest.fixture(scope="module")
def compiler():
    ends = [b""]
    words = [b'": ', b'", "', b"null", b"true", b"0", b'{"', b'"}', b"[]", b"{}"]
    token_bytes = [*ends, *(bytes([n]) for n in range(256)), *words]
    return GuidanceCompiler(Vocabulary(token_bytes, lambda text: [1 + n for n in text.encode()]))


def strictly(compiler, schema):
    def attempt(constraint):
        check_limits(constraint)
        return compiler.compile(constraint)

    return compile_relaxed(
        JsonSchema.of(schema, tool="t0"), compiler.schema_support, attempt, attempt
    )


def answer_within(matcher, token_bytes, chance):
    """Return a text by chance that the matcher lets end, or None if it does not soon."""
    said = b""
    for step in range(300):
        if matcher.may_end and (step > 40 or chance.random() < 0.5):
            return said.decode()
        mask = np.zeros((len(token_bytes) + 31) // 32, np.int32)
        try:
            matcher.fill(mask)
        except ConstraintError:  # it ends its own answer
            return None
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not len(allowed):
            return said.decode() if matcher.may_end else None
        closing = [i for i in allowed if token_bytes[i][:1] in b'"}]']
        token_id = int(chance.choice(closing if closing and step > 20 else list(allowed)))
        assert matcher.accept(token_id)
        said += token_bytes[token_id]
    return None


def as_meant(schema):
    """Return a schema as validators of the last draft read it."""
    if isinstance(schema, list):
        return [as_meant(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: as_meant(each) for key, each in rewritten(schema).items()}


def check_reason(name, schema, error):
    """Check that an error names the tool, and a keyword that the schema has at the named path.

    It names no path for a schema that is nested too deeply. The same holds for a keyword behind a
    reference to other than ``$defs``.
    """
    text = str(error)
    assert "tool 't0'" in text, (name, text)
    place = PLACE.search(text)
    if not place:
        assert error.keyword in json.dumps(schema), (name, text)
        assert error.keyword or "depth" in text, (name, text)
        assert "components" in schema or not error.keyword, (name, text)
        return
    *parents, last = place[1].split("/")[1:]
    is_pattern = error.keyword == "patternProperties" and last != error.keyword
    if "holds a value that is no schema" not in text:  # which has no keyword
        assert error.keyword == (parents[-1] if is_pattern else last), (name, text)
    for key in (*parents, last):  # raises if the schema has no such path
        key = key.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901
        schema = schema[int(key)] if isinstance(schema, list) else schema[key]


def check_strict(compiler, schemas):
    found = Counter()
    for name, schema in schemas:
        try:
            make, left_out = strictly(compiler, schema)
        except ConstraintError as error:
            found["rejected"] += 1
            check_reason(name, schema, error)
            continue
        assert not left_out, name
        validator = jsonschema.Draft202012Validator(as_meant(schema))
        for seed in range(3):
            text = answer_within(make(), compiler._tokens.tokens[:-1], random.Random(seed))
            if text is not None:
                found["answers"] += 1
                problem = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(text)))
                assert problem is None, (name, text, problem)
        found["enforced"] += 1
    return found


def test_strict_schemas_are_enforced_or_rejected_by_keyword(compiler, sample):
    found = check_strict(compiler, sample)
    assert found["enforced"] > 20
    assert found["rejected"] > 5
    assert found["answers"] > found["enforced"]


@pytest.mark.slow
def test_all_strict_schemas_are_enforced_or_rejected_by_keyword(compiler, schemas):
    found = check_strict(compiler, schemas)
    assert found["enforced"] > 250
    assert found["answers"] > found["enforced"]
