"""What an answer may be asked to keep to: a JSON schema, a pattern, a list of texts, a grammar.

Plain values, bounded in size and compared by what they say. Whether a constraint makes sense is for
who compiles it to find out; what an answer has become when its length ends it is not promised here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmkit.errors import ConstraintError

MAX_CHARS = 2**16  # of one constraint
MAX_TEXTS = 4096  # of one choice


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON value that a schema describes, its properties in the schema's order.

    Attributes:
        text: the schema, as JSON; :meth:`of` makes it of Python's values.
        is_strict: whether each of its keywords must be enforced. Otherwise, those that cannot be
            and only narrow a value are left out.
        tool: whose arguments it describes; empty for an answer. The arguments of a tool are left
            free where a schema that is not strict cannot be enforced at all.
        place: where in the tool's schema it stands, as a JSON pointer.
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
        """Make one of a schema in Python's values; properties are answered in their order.

        Args:
            schema: in Python's values.
            is_strict: whether each of its keywords must be enforced.
            tool: whose arguments it describes.
            place: where in the tool's schema it stands.

        Raises:
            ConstraintError: JSON cannot say it.
        """
        try:
            text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConstraintError("a schema must be made of JSON's values") from error
        return cls(text, is_strict, tool, place)


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that a regular expression matches as a whole.

    Attributes:
        pattern: without look-around and back-references.
    """

    pattern: str

    def __post_init__(self) -> None:
        _check_text(self.pattern, "a pattern")


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several texts.

    Attributes:
        texts: at least one.
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
    """A text of a context-free grammar.

    Attributes:
        rules: in Lark's notation; ``start`` is the whole text.
        schemas: more rules, by name: each is a JSON value that a schema describes.
        tokens: more rules, by name: each is one token, also one that adds nothing to the text.
        unconstrained: what whoever wrote the rules left free though a schema narrows it: tools with
            paths in their schemas, such as ``search#/properties/word/pattern``.
    """

    rules: str
    schemas: tuple[tuple[str, JsonSchema], ...] = ()
    tokens: tuple[tuple[str, int], ...] = ()
    unconstrained: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_text(self.rules, "a grammar")


Constraint = JsonSchema | JsonObject | Regex | OneOf | Lark


def check_constraint(constraint: object) -> None:
    """Refuse what somebody passed as a constraint and is none.

    Raises:
        ConstraintError: it is none.
    """
    if constraint is not None and not isinstance(constraint, Constraint):
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
