"""A grammar in Lark's notation while it is written, and how texts stand in it."""

import json
import re

from vlmkit.interfaces.chat_format import Mark
from vlmkit.types.constraint import JsonSchema, Lark

_PIECES = re.compile(r"(?s:\\.|/|\n)")
_WITHIN_SLASHES = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}


class LarkRules:
    """Rules under way."""

    def __init__(self) -> None:
        self._rules: list[str] = []
        self._schemas: list[tuple[str, JsonSchema]] = []
        self._tokens: list[tuple[str, int]] = []
        self._unconstrained: list[str] = []

    def add(self, rule: str) -> None:
        """Add a rule."""
        self._rules.append(rule)

    def schema(self, rule: str, schema: JsonSchema) -> str:
        """Add a rule that is a schema; return its name."""
        self._schemas.append((rule, schema))
        return rule

    def leave_free(self, what: str) -> None:
        """Take note of a part of a schema that no rule enforces."""
        self._unconstrained.append(what)

    def mark(self, rule: str, mark: Mark) -> str:
        """Return what matches a mark: a rule of this name, which is its token, or its spelling."""
        if mark.token_id is None:
            return literal(mark.text)
        if (rule, mark.token_id) not in self._tokens:
            self._tokens.append((rule, mark.token_id))
        return rule

    def made(self, start: str) -> Lark:
        """Return the grammar of a text."""
        rules = "\n".join([f"start: {start}", *self._rules])
        schemas, tokens = tuple(self._schemas), tuple(self._tokens)
        return Lark(rules, schemas, tokens, tuple(self._unconstrained))


def quoted(text: str) -> str:
    """Return a text as a grammar, or JSON, quotes it."""
    return json.dumps(text, ensure_ascii=False)


def literal(text: str) -> str:
    """Return what matches a text; nothing for the empty one."""
    return quoted(text).replace("\x7f", "\\u007f") if text else ""


def pattern(text: str) -> str:
    """Return the regular expression of a text."""
    return within_slashes(re.escape(text))


def within_slashes(expression: str) -> str:
    """Return a regular expression as it stands between slashes."""
    return _PIECES.sub(lambda found: _WITHIN_SLASHES.get(found[0], found[0]), expression)
