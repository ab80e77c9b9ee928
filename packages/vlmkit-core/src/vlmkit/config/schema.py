"""The JSON schema of the config, with a description of each field and the installed providers."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from vlmkit.config.providers import groups_of, registry_of
from vlmkit.config.structs import (
    COMPONENTS,
    SECTIONS,
    ModelEntry,
    descriptions,
    struct_of,
    with_tables,
)
from vlmkit.plugins.kinds import Kind
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(plugins: Plugins) -> dict[str, Any]:
    """Return the schema of a config file; each component's section has a variant per provider."""
    schema = _struct_schema(with_tables(plugins.tables))
    for section in COMPONENTS:
        meaning = schema["properties"][section].get("description", "")
        forms = [
            *_unnamed_forms(SECTIONS[section]),
            *_provider_forms(registry_of(plugins, section)),
        ]
        schema["properties"][section] = {"description": meaning, "anyOf": forms}
    for section in groups_of(plugins):
        meaning = schema["properties"][section].get("description", "")
        default = () if plugins.sections[section].is_optional else ("auto",)
        form = _group_form(registry_of(plugins, section), default)
        schema["properties"][section] = {"description": meaning, **form}
    files = {"type": ["object", "array"], "items": {"type": "string"}}  # a list means files
    schema["properties"]["plugins"] |= files
    schema["properties"]["models"]["items"] = _struct_schema(ModelEntry)
    return {"$schema": DIALECT, **schema, "title": "vlmkit"}


def _provider_forms(registry: Registry[Any]) -> Iterator[dict[str, Any]]:
    for provider in registry:
        key = registry.key(provider)
        form: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
        if provider.settings is not None:
            form = _struct_schema(provider.settings)
        form["properties"] = {"use": {"const": key}, **form["properties"]}
        form["required"] = ["use", *form.get("required", ())]
        yield {**form, "title": key, "description": provider.description}


def _group_form(registry: Registry[Any], default: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a group's section, with a table for each provider."""
    keys = {registry.key(p): p.settings for p in registry}
    names = {"type": "array", "items": {"enum": ["auto", *keys]}, "default": list(default)}
    tables = {key: _struct_schema(struct) for key, struct in keys.items() if struct is not None}
    return {
        "type": "object",
        "properties": {"use": names, **tables},
        "additionalProperties": False,
    }


def _unnamed_forms(kind: Kind[Any]) -> Iterator[dict[str, Any]]:
    """Yield the variants that name no provider."""
    yield {
        "title": "auto",
        "description": "the best provider that can serve the model here",
        "type": "object",  # the chosen provider checks its settings
        "properties": {"use": {"const": "auto", "default": kind.default}},
    }
    if kind.takes_none:
        yield {
            "title": "none",
            "description": "nothing",
            "type": "object",
            "properties": {"use": {"const": "none", "default": kind.default}},
            "additionalProperties": False,
        }


def _struct_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a struct without references, with a description of every field."""
    _, components = msgspec.json.schema_components([struct])
    schema: dict[str, Any] = _inlined({"$ref": f"#/$defs/{struct.__name__}"}, components)
    _describe(schema, struct)
    return schema


def _inlined(node: Any, components: dict[str, Any]) -> Any:
    """Replace every reference by its target; settings are trees, never recursive."""
    if isinstance(node, list):
        return [_inlined(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        rest = {key: value for key, value in node.items() if key != "$ref"}
        target = components[node["$ref"].rpartition("/")[2]]
        return {**_inlined(target, components), **rest}
    return {key: _inlined(value, components) for key, value in node.items()}


def _describe(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Add the description of each field to its schema, including nested structs."""
    meanings = descriptions(struct)
    schema["description"] = (struct.__doc__ or "").partition("\n")[0]
    for field in msgspec.structs.fields(struct):
        part = schema["properties"][field.encode_name]
        inner = struct_of(field.type)
        if inner is not None and "properties" in part:
            _describe(part, inner)
        if field.name in meanings:
            part["description"] = meanings[field.name]
