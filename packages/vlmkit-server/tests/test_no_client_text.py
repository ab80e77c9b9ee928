"""A marker in each declared field of each API is in no log and no response header.

The fields come from the server's OpenAPI document, which is generated from the wire types. Each
declared field is therefore tried.
"""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from running_server import Running, running

import vlmkit
from vlmkit.kit.traces import TraceFormatter
from vlmkit_server.settings.server import DataSettings

pytest.importorskip("vlmkit_guidance")
pytestmark = pytest.mark.posix

MARKER = "ZxMarkerQy"
KEY = f"{MARKER} key"  # not a valid name: a header lists ignored keys that are
MAX_DEPTH = 7
OWN_LOGGERS = ("vlmkit", "vlmkit_server", "uvicorn", "litestar")
TEST_LOGGERS = ("httpx", "httpcore", "hypothesis", "faker")
VALUES: tuple[Any, ...] = (
    MARKER,
    f"({MARKER}[",
    f'start: {MARKER} /(/ "\\',
    {"type": MARKER, KEY: [MARKER]},
    {"type": "object", "properties": {KEY: {"pattern": f"({MARKER}", "$ref": f"#/{MARKER}"}}},
    [MARKER, {KEY: MARKER}],
    f"data:image/{MARKER};base64,{MARKER}",
)
SHOWN = ("request_id",)  # the log contains the request id
PLAIN = {"model": "mock", "role": "user", "completion_window": "24h", "content": "hello"}


class Api:
    """Request bodies of the server's routes.

    Args:
        document: the OpenAPI document of the server.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = document["components"]["schemas"]
        self._paths = document["paths"]

    def bodies(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield each field of each route: its path, and a body with the location of the field."""
        for path, operations in self._paths.items():
            content = operations.get("post", {}).get("requestBody", {}).get("content", {})
            for media in ("application/json", "multipart/form-data"):
                if media in content:
                    schema = content[media]["schema"]
                    for field_path in self._field_paths(schema, ()):
                        yield path, media, {"schema": schema, "place": field_path}

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def branches(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        schema = self.resolved(schema)
        found = [b for key in ("anyOf", "oneOf", "allOf") for b in schema.get(key, [])]
        return [each for branch in found for each in self.branches(branch)] or [schema]

    def _field_paths(
        self, schema: dict[str, Any], path: tuple[Any, ...]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the paths to fields: names, and branch numbers for lists and unions."""
        if len(path) > MAX_DEPTH:
            return
        for number, branch in enumerate(self.branches(schema)):
            for name, inner in branch.get("properties", {}).items():
                yield (*path, (number, name))
                yield from self._field_paths(inner, (*path, (number, name)))
            if isinstance(items := branch.get("items"), dict):
                yield from self._field_paths(items, (*path, (number, None)))

    def sample(self, schema: dict[str, Any], name: str = "", depth: int = 0) -> Any:
        """Return a value that a schema allows."""
        branches = self.branches(schema)
        if name == "messages":
            return [{"role": "user", "content": "hello"}]
        return self._of_branch(branches[0], name, depth)

    def _of_branch(self, branch: dict[str, Any], name: str, depth: int = 0) -> Any:
        if "const" in branch or "enum" in branch:
            return branch.get("const", branch.get("enum", [None])[0])
        if name in PLAIN:
            return PLAIN[name]
        kind = branch.get("type", "string")
        if kind == "object":
            properties = branch.get("properties", {})
            needed = {
                *branch.get("required", []),
                *filter(None, [self._prompt_field(branch, depth)]),
            }
            needed |= {
                n for n, s in properties.items() if len(self.resolved(s).get("enum", [])) == 1
            }
            return {n: self.sample(properties[n], n, depth + 1) for n in sorted(needed)}
        if kind == "array":
            return [self.sample(branch.get("items", {}), name, depth + 1)] if depth < 6 else []
        known = {"integer": 1, "number": 1.0, "boolean": False, "null": None}
        return known.get(kind, "hello")

    def _prompt_field(self, branch: dict[str, Any], depth: int) -> str:
        """Return the field of a body with the prompt, if the schema requires none."""
        if depth or "messages" in branch.get("required", []):
            return ""
        return next((n for n in ("input", "prompt") if n in branch["properties"]), "")

    def with_value(
        self, schema: dict[str, Any], path: tuple[Any, ...], value: Any, depth: int = 0
    ) -> Any:
        """Return a body with a value at a location, and samples elsewhere."""
        if not path:
            return value
        (number, name), *rest = path
        branch = self.branches(schema)[number]
        if name is None:
            return [self.with_value(branch["items"], tuple(rest), value, depth + 1)]
        body = self._of_branch(branch, "", depth)
        body = body if isinstance(body, dict) else {}
        inner = branch["properties"][name]
        return body | {name: self.with_value(inner, tuple(rest), value, depth + 1)}


@pytest.fixture(scope="module")
def server_and_logs(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Any, io.StringIO, Any]]:
    """A server with its DEBUG log and its log files; constraints are compiled in this process."""
    folder = tmp_path_factory.mktemp("logs")
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(TraceFormatter())
    handler.addFilter(lambda record: not record.name.startswith(TEST_LOGGERS))
    root, levels = logging.getLogger(), {name: logging.getLogger(name) for name in OWN_LOGGERS}
    before = {name: logger.level for name, logger in levels.items()}
    root.addHandler(handler)
    for logger in levels.values():
        logger.setLevel(logging.DEBUG)
    settings = {
        "access_log": str(folder / "access"),
        "audit_log": str(folder / "audit"),
        "data": DataSettings(folder=str(folder / "data")),
        "allow_generate": True,
    }
    config = {"observers": {"use": ["log"]}, "pipeline": {"max_output_tokens": 8}}
    try:
        with vlmkit.load("mock", **config) as model, running({"mock": model}, **settings) as server:
            yield server, written, folder
    finally:
        root.removeHandler(handler)
        for name, level in before.items():
            levels[name].setLevel(level)


def sent(server: Running, path: str, media: str, body: Any) -> httpx2.Response:
    path = path.replace("{", MARKER).replace("}", "")
    if media == "application/json":
        return server.post(body, path)
    fields = {n: v if isinstance(v, str) else json.dumps(v) for n, v in body.items() if n != "file"}
    files = {"file": (MARKER, MARKER.encode(), f"x/{MARKER}")}
    return server.http.post(f"{server.url}{path}", data=fields, files=files)


@pytest.mark.parametrize("num_values", [1, pytest.param(len(VALUES), marks=pytest.mark.slow)])
def test_a_marker_in_each_declared_field_is_in_no_log_and_no_header(
    server_and_logs: Any, num_values: int
) -> None:
    server, written, folder = server_and_logs
    api = Api(server.get("/openapi.json").json())
    fields = [each for each in api.bodies() if each[2]["place"][-1][1] not in SHOWN]
    assert len({path for path, _, _ in fields}) > 10
    assert len(fields) > 300
    statuses: dict[int, int] = {}
    for number, (path, media, field) in enumerate(fields):
        for value in [VALUES[(number + n) % len(VALUES)] for n in range(num_values)]:
            body = api.with_value(field["schema"], field["place"], value)
            answer = sent(server, path, media, body)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert answer.status_code not in (500, 502), (path, field["place"], value, answer.text)
            # A header tells the client which keywords of its schemas are not enforced.
            headers = {k: v for k, v in answer.headers.items() if k != "x-vlmkit-unconstrained"}
            output = f"{headers}{written.getvalue()}"
            assert MARKER.lower() not in output.lower(), (path, field["place"], value)
            written.seek(0)
            written.truncate()
    logs = (folder / "access").read_text() + (folder / "audit").read_text()
    assert MARKER.lower() not in logs.lower()
    assert statuses.get(400, 0) > 300, statuses
    assert statuses.get(200, 0) > 20, statuses
