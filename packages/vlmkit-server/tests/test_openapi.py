"""The OpenAPI document describes exactly the routes of this server.

``nox -s schema`` compares the document with the server's behaviour, for minutes.
"""

import re

import msgspec
import pytest
from litestar.routes import HTTPRoute
from running_server import running

from vlmkit_server.app import create_app
from vlmkit_server.operate.openapi import openapi_document
from vlmkit_server.settings.server import ServerSettings

ALL = {"allow_generate": True, "fleet": {"manage": True}}


@pytest.fixture(scope="module")
def app():
    return create_app({}, msgspec.convert(ALL, ServerSettings))


@pytest.fixture(scope="module")
def document(app):
    return msgspec.json.decode(openapi_document(app))


def parts(value):
    """Yield each object in a document."""
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from parts(each)
    if isinstance(value, dict):
        yield value


def operations(document):
    return {
        (path, method.upper()): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_the_document_lists_exactly_the_routes_of_the_server(app, document):
    assert set(operations(document)) == {
        (route.path_format, method)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method in set(route.methods) - {"OPTIONS"}
    }


def test_disabled_routes_are_not_in_the_document():
    closed = msgspec.json.decode(openapi_document(create_app({})))
    assert "/inference/v1/generate" not in closed["paths"]
    assert "/v1/chat/completions" in closed["paths"]


def test_every_reference_resolves_and_every_schema_is_used(document):
    found = {part["$ref"] for part in parts(document) if "$ref" in part}
    schemas = document["components"]["schemas"]
    assert found == {f"#/components/schemas/{name}" for name in schemas}
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in schemas)


def test_each_operation_has_a_unique_id_a_summary_and_its_responses(document):
    described = operations(document)
    assert len({each["operationId"] for each in described.values()}) == len(described)
    assert all(each["summary"] for each in described.values())
    for (path, method), each in described.items():
        in_path = {p["name"] for p in each["parameters"] if p["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        assert ("requestBody" in each) == (method == "POST" and not path.endswith("cancel"))
        assert {"200", "421", "500"} <= set(each["responses"])


def test_links_of_a_response_cover_all_its_operations(document):
    described = operations(document)
    by_id = {each["operationId"]: (key, each) for key, each in described.items()}
    links = described["/v1/responses", "POST"]["responses"]["200"]["links"].values()
    found = set()
    for link in links:
        key, operation = by_id[link["operationId"]]
        needed = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
        assert link["parameters"] == dict.fromkeys(needed, "$response.body#/id")
        found.add(key)
    assert found == {key for key in described if "{response_id}" in key[0] and key[1] != "HEAD"}


def test_documented_limits_and_tags_are_enforced(document):
    schemas = document["components"]["schemas"]
    assert schemas["ChatRequest"]["required"] == ["messages"]
    assert schemas["ChatRequest"]["properties"]["messages"]["items"]["required"] == ["role"]
    assert schemas["ChatRequest"]["properties"]["temperature"]["anyOf"][0] == {
        "type": "number",
        "minimum": 0.0,
        "maximum": 2.0,
    }
    assert schemas["ToolCall"]["required"] == ["id", "function"]


def test_the_document_is_served():
    with running(allow_generate=True) as server:
        answer = server.get("/openapi.json")
        assert answer.headers["content-type"] == "application/json"
        assert "/inference/v1/generate" in answer.json()["paths"]
        assert answer.content == server.get("/openapi.json").content
