"""Fields that a server declares, read from its OpenAPI document; no values and no requests.

The document is generated from the routes, the types of their bodies and the fields of plugins, so
a field that is declared anywhere appears here.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SEND = ("get", "post", "delete", "put", "patch")
ITEM, VALUE, KEY = "[]", "{}", "{key}"
"""Steps of a path: an item of a list, and a value and a key of an object of any keys."""

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """One place of a request that takes a value.

    Attributes:
        method: of the operation.
        route: its path as the document writes it.
        where: ``json``, ``form``, ``query``, ``path`` or ``header``.
        steps: keys from the body's root, with ``ITEM``, ``VALUE`` and ``KEY``, and ``|N`` for the
            N-th alternative of a union.
        schema: of the value, references resolved one level.
        owner: the component that declares it; empty outside of components.
    """

    method: str
    route: str
    where: str
    steps: tuple[str, ...]
    schema: Json
    owner: str

    @property
    def names(self) -> tuple[str, ...]:
        """The keys on the way to it."""
        return tuple(s for s in self.steps if s not in (ITEM, VALUE, KEY) and s[0] != "|")

    @property
    def name(self) -> str:
        """The last key on the way to it."""
        return self.names[-1] if self.names else ""

    @property
    def place(self) -> str:
        """How reports write it."""
        inner = ".".join(step for step in self.steps if step[0] != "|").replace(".[]", "[]")
        return f"{self.method.upper()} {self.route} {self.where}:{inner or '(body)'}"

    @property
    def declaration(self) -> tuple[str, ...]:
        """What fields have in common that are one declaration, of which several routes make use."""
        shape = json.dumps(self.schema, sort_keys=True)
        return (self.owner or self.route, self.use, self.where, self.name, self.steps[-1], shape)

    @property
    def use(self) -> str:
        """``render`` of routes that write all tokens of a prompt out, which costs more."""
        return "render" if self.route.endswith("/render") else "answer"

    @property
    def kind(self) -> str:
        """``text``, ``number``, ``list``, ``object``, ``any``, ``flag`` or ``choice``."""
        schema = self.schema
        if "enum" in schema or "const" in schema:
            return "choice"
        kinds = {"string": "text", "integer": "number", "number": "number"}
        kinds |= {"array": "list", "object": "object", "boolean": "flag", "null": "flag"}
        return kinds[schema["type"]] if "type" in schema else "any"


class Document:
    """Walks an OpenAPI document.

    Args:
        document: as ``/openapi.json`` returns it.
    """

    def __init__(self, document: Json) -> None:
        self._document = document

    def operations(self) -> Iterator[tuple[str, str, Json]]:
        """Yield method, path and description of each operation."""
        for path, methods in self._document["paths"].items():
            for method in SEND:
                if method in methods:
                    yield method, path, methods[method]

    def fields(self) -> list[Field]:
        """Return each field of each operation once, in the order of the document."""
        found: dict[tuple[str, ...], Field] = {}
        for method, path, operation in self.operations():
            for field in self._of(method, path, operation):
                shape = str(sorted(field.schema.items()))
                key = (method, path, field.where, *field.steps, shape)
                found.setdefault(key, field)
        return [*found.values()]

    def _of(self, method: str, path: str, operation: Json) -> Iterator[Field]:
        for each in operation.get("parameters", ()):
            yield from self._walk(method, path, each["in"], (each["name"],), each["schema"])
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            where = "json" if kind == "application/json" else "form"
            yield from self._walk(method, path, where, (), content["schema"])

    def resolved(self, schema: Json) -> tuple[Json, str]:
        """Return the target of a reference, and the name of the component."""
        name = ""
        while "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            schema = self._document["components"]["schemas"][name]
        return schema, name

    def _walk(
        self,
        method: str,
        path: str,
        where: str,
        steps: tuple[str, ...],
        schema: Json,
        owners: tuple[str, ...] = (),
    ) -> Iterator[Field]:
        schema, name = self.resolved(schema)
        if name in owners:  # a type within itself: the first level is attacked, and by depth
            return
        owners = (*owners, name) if name else owners
        if "anyOf" in schema:
            for number, each in enumerate(schema["anyOf"]):
                yield from self._walk(method, path, where, (*steps, f"|{number}"), each, owners)
            return
        owner = next(iter(owners[::-1]), "")
        if steps and schema.get("type") != "null":
            yield Field(method, path, where, steps, schema, owner)
        for step, inner in inside(schema):
            yield from self._walk(method, path, where, (*steps, step), inner, owners)


def inside(schema: Json) -> Iterator[tuple[str, Json]]:
    """Yield the subschemas of a schema, by the step that leads to them."""
    yield from schema.get("properties", {}).items()
    if isinstance(items := schema.get("items"), Mapping):
        yield ITEM, items
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        yield VALUE, values
    if isinstance(keys := schema.get("propertyNames"), Mapping):
        yield KEY, keys
