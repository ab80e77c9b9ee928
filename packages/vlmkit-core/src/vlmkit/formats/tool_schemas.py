"""Grammar rules for the schemas of tool arguments; compiles no schema."""

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

from vlmkit.errors import ConstraintError
from vlmkit.formats.lark_rules import LarkRules
from vlmkit.types.constraint import JsonSchema
from vlmkit.types.tool_choice import tool_name, tool_schema

_OF_TEXT = ("pattern", "format", "minLength", "maxLength")
_DEFINITIONS = ("$defs", "definitions")


class ToolSchemas:
    """Adds the schemas of tools to a grammar.

    Args:
        rules: the rules of the grammar.
        strict: names of tools whose schemas must be enforced in full, besides those whose
            definitions say so.
    """

    def __init__(self, rules: LarkRules, strict: Collection[str]) -> None:
        self._rules = rules
        self._strict = strict

    def arguments(self, rule: str, tool: Mapping[str, Any]) -> str:
        """Add a rule for the arguments of a call; return its name.

        Raises:
            ConstraintError: the schema is strict and too large.
        """
        return self._add(rule, tool, tool_schema(tool), "", {"type": "object"})

    def value(self, rule: str, tool: Mapping[str, Any], key: str, schema: Any) -> str:
        """Add a rule for one argument as JSON; return its name.

        Raises:
            ConstraintError: the schema is strict and too large.
        """
        if isinstance(schema, dict):
            whole = tool_schema(tool)
            schema = schema | {name: whole[name] for name in _DEFINITIONS if name in whole}
        return self._add(rule, tool, schema, _pointer(key), True)

    def leave_text_free(self, tool: Mapping[str, Any], key: str, schema: Mapping[str, Any]) -> None:
        """Record that the grammar allows any text for an argument of type string.

        Raises:
            ConstraintError: the schema is strict and narrows the text.
        """
        for keyword in filter(schema.__contains__, _OF_TEXT):
            self._leave_free(
                tool,
                f"{_pointer(key)}/{keyword}",
                ConstraintError(
                    f"the schema of tool {tool_name(tool)!r} uses {keyword}, which this model's "
                    f"way to call tools cannot enforce, at #{_pointer(key)}/{keyword}",
                    keyword=keyword,
                ),
            )

    def _add(
        self,
        rule: str,
        tool: Mapping[str, Any],
        schema: Any,
        place: str,
        free: dict[str, Any] | bool,
    ) -> str:
        name, is_strict = tool_name(tool), self._is_strict(tool)
        try:
            constraint = JsonSchema.of(schema, is_strict=is_strict, tool=name, place=place)
        except ConstraintError as error:
            self._leave_free(tool, place, error)
            constraint = JsonSchema.of(free, tool=name, place=place)
        return self._rules.schema(rule, constraint)

    def _leave_free(self, tool: Mapping[str, Any], path: str, error: ConstraintError) -> None:
        if self._is_strict(tool):
            error.param = "tools"
            raise error
        self._rules.leave_free(f"{_quoted(tool_name(tool))}#{_quoted(path)}")

    def _is_strict(self, tool: Mapping[str, Any]) -> bool:
        return tool_name(tool) in self._strict or tool["function"].get("strict") is True


def _pointer(key: str) -> str:
    """Return the JSON pointer of a property."""
    return f"/properties/{key.replace('~', '~0').replace('/', '~1')}"


def _quoted(text: str) -> str:
    return quote(text, safe="/$~", errors="replace")
