"""Building and quoting of grammars in Lark's notation; parses none."""

import json
import re

from vlmkit.interfaces.chat_format import Mark
from vlmkit.types.constraint import JsonSchema, Lark

_PIECES = re.compile(r"(?s:\\.|/|\n)")
_WITHIN_SLASHES = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}


class LarkRules:
    """Collects the rules of a grammar."""

    def __init__(self) -> None:
        self._rules: list[str] = []
        self._schemas: list[tuple[str, JsonSchema]] = []
        self._tokens: list[tuple[str, int]] = []
        self._relaxed: list[str] = []

    def add(self, rule: str) -> None:
        """Add a rule."""
        self._rules.append(rule)

    def schema(self, rule: str, schema: JsonSchema) -> str:
        """Add a rule for a JSON value that matches a schema; return its name."""
        self._schemas.append((rule, schema))
        return rule

    def leave_free(self, what: str) -> None:
        """Record a part of a schema that no rule enforces."""
        self._relaxed.append(what)

    def mark(self, rule: str, mark: Mark) -> str:
        """Return an expression for a delimiter: a rule of this name for a token, else its text."""
        if mark.token_id is None:
            return literal(mark.text)
        if (rule, mark.token_id) not in self._tokens:
            self._tokens.append((rule, mark.token_id))
        return rule

    def grammar(self, start: str) -> Lark:
        """Return the grammar whose start rule is ``start``."""
        rules = "\n".join([f"start: {start}", *self._rules])
        schemas, tokens = tuple(self._schemas), tuple(self._tokens)
        return Lark(rules, schemas, tokens, tuple(self._relaxed))


def quoted(text: str) -> str:
    """Return a text quoted for a grammar or JSON."""
    return json.dumps(text, ensure_ascii=False)


def literal(text: str) -> str:
    """Return an expression that matches a text; empty for an empty text."""
    return quoted(text).replace("\x7f", "\\u007f") if text else ""


def pattern(text: str) -> str:
    """Return a regular expression that matches a text, for use between slashes."""
    return within_slashes(re.escape(text))


def within_slashes(expression: str) -> str:
    """Return a regular expression escaped for use between slashes."""
    return _PIECES.sub(lambda found: _WITHIN_SLASHES.get(found[0], found[0]), expression)
