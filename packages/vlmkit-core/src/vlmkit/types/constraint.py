"""Constraints of answers: a JSON schema, a regular expression, a list of texts or a grammar.

Plain values, bounded in size and compared by content. They are not validated in full: the
constraint compiler does that. An answer that ends at its maximum length may be incomplete.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from vlmkit.errors import ConstraintError

MAX_CHARS = 2**16  # of one constraint
MAX_SCHEMA_BYTES = 8 * MAX_CHARS  # of a schema as JSON, white space included
MAX_TEXTS = 4096  # of one choice


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """Constrains an answer to a JSON value that matches a schema, properties in schema order.

    Attributes:
        text: the schema as JSON; :meth:`of` creates it from Python values.
        is_strict: whether every keyword must be enforced. If not, the compiler drops keywords that
            it cannot enforce, if they only narrow a value.
        tool: the tool whose arguments it describes; empty for an answer. If a schema is not strict
            and cannot be enforced at all, the tool's arguments are unconstrained.
        place: the JSON pointer of this schema in the tool's schema.
    """

    text: str
    is_strict: bool = True
    tool: str = ""
    place: str = ""

    def __post_init__(self) -> None:
        _check_text(self.text, "a schema")
        try:
            schema = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise ConstraintError("a schema must be JSON, of bounded depth") from error
        if not isinstance(schema, dict | bool):
            raise ConstraintError("a schema must be a JSON object, true or false")

    @classmethod
    def of(
        cls,
        schema: Mapping[str, Any] | bool,
        *,
        is_strict: bool = True,
        tool: str = "",
        place: str = "",
    ) -> "JsonSchema":
        """Return the constraint of a schema; answers keep the order of its properties.

        Args:
            schema: the schema as Python values.
            is_strict: whether every keyword must be enforced.
            tool: the tool whose arguments it describes; empty for an answer.
            place: the JSON pointer of this schema in the tool's schema.

        Raises:
            ConstraintError: the schema cannot be written as JSON, or is too large.
        """
        try:
            text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConstraintError("a schema must be made of JSON's values") from error
        return cls(text, is_strict, tool, place)


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Constrains an answer to any JSON object."""


@dataclass(frozen=True, slots=True)
class Regex:
    """Constrains an answer to a text that a regular expression matches as a whole.

    Attributes:
        pattern: the expression, without look-around and back-references.
    """

    pattern: str

    def __post_init__(self) -> None:
        _check_text(self.pattern, "a pattern")


@dataclass(frozen=True, slots=True)
class OneOf:
    """Constrains an answer to one of several texts.

    Attributes:
        texts: the texts; at least one.
    """

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.texts, tuple):
            raise ConstraintError("texts to choose from must be a tuple")
        if not 0 < len(self.texts) <= MAX_TEXTS:
            raise ConstraintError(f"texts to choose from must be 1 to {MAX_TEXTS}")
        for text in self.texts:
            _check_text(text, "a text to choose")
        if sum(map(len, self.texts)) > MAX_CHARS:
            raise ConstraintError(f"texts to choose from are over {MAX_CHARS} characters together")


@dataclass(frozen=True, slots=True)
class Lark:
    """Constrains an answer to a context-free grammar.

    Attributes:
        rules: the rules in Lark's notation; ``start`` matches the whole text.
        schemas: further rules by name, each a JSON value that matches a schema.
        tokens: further rules by name, each one token, which may add nothing to the text.
        unconstrained: keywords of schemas that the rules do not enforce, each as a tool and a path
            in its schema, such as ``search#/properties/word/pattern``.
    """

    rules: str
    schemas: tuple[tuple[str, JsonSchema], ...] = ()
    tokens: tuple[tuple[str, int], ...] = ()
    unconstrained: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_text(self.rules, "a grammar")


Constraint = JsonSchema | JsonObject | Regex | OneOf | Lark


def decoded_schema(content: bytes | msgspec.Raw) -> Any:
    """Return a schema as Python values, for :meth:`JsonSchema.of`; white space is not counted.

    Args:
        content: the schema as JSON in UTF-8, such as the content of a file.

    Raises:
        ConstraintError: it is not JSON, or too large.
    """
    if memoryview(content).nbytes > MAX_SCHEMA_BYTES:
        raise ConstraintError(f"a schema is over the limit of {MAX_CHARS} characters")
    try:
        return msgspec.json.decode(content)
    except (ValueError, RecursionError):  # a client's text is in these errors
        raise ConstraintError("a schema must be JSON, of bounded depth") from None


def check_constraint(constraint: object) -> None:
    """Raise an error for a value that is no constraint.

    Raises:
        ConstraintError: the value is not a constraint.
    """
    if not isinstance(constraint, Constraint):
        raise ConstraintError(
            "a constraint must be one of vlmkit.types.constraint",
            hint='for example OneOf(("yes", "no"))',
        )


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str) or not text:
        raise ConstraintError(f"{what} must be text, and not empty")
    if len(text) > MAX_CHARS:
        raise ConstraintError(f"{what} is over the limit of {MAX_CHARS} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConstraintError(f"{what} holds half of a surrogate pair") from error
