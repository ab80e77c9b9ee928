"""Translates llguidance's refusals of constraints into messages that are safe to show.

The library's own text quotes the client's constraint, so none of it goes into an error or a log.
The messages hold a reason from a closed list, a keyword of JSON Schema, and a position.
"""

import re

KINDS = (
    ("too many expressions", "its patterns have too many states"),
    ("too many states", "its patterns have too many states"),
    ("fuel exhausted", "its patterns take too long to compile"),
    ("precomputation failed", "its patterns take too long to compile"),
    ("lexer configuration", "its patterns take too long to compile"),
    ("items", "it can be read in too many ways at once"),
    ("grammar size", "it is too large"),
    ("schema too large", "it is too large"),
    ("stack level", "it is nested too deeply"),
    ("recursion", "it is nested too deeply"),
    ("look-a", "patterns have no look-around and no back-references"),
    ("look-around", "patterns have no look-around and no back-references"),
    ("backreference", "patterns have no look-around and no back-references"),
    ("Unimplemented keys", "it uses a keyword that is not supported"),
    ("nsatisfiable", "nothing can match it"),
    ("oneOf", "oneOf is supported only where its schemas exclude each other"),
    ("patternPropert", "patternProperties must exclude each other"),
    ("Failed to generate regex", "the bounds of a number are out of range"),
    ("format", "it uses a format that is not supported"),
    ("regex", "a pattern is malformed"),
    ("unknown name", "it uses a rule that is not defined"),
    ("not found", "it uses a rule that is not defined"),
    ("lexer error", "its syntax is wrong"),
    ("expected", "its syntax is wrong"),
    ("Expected", "its syntax is wrong"),
)
KEYWORDS = (
    *("if", "then", "else", "not", "contains", "minContains", "maxContains", "uniqueItems"),
    *("propertyNames", "dependencies", "dependentRequired", "dependentSchemas"),
    *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
)
FAULTY = (
    ("regex parse error", "pattern"),
    ("lookarounds not supported", "pattern"),
    ("Unknown format", "format"),
    ("oneOf", "oneOf"),
    ("patternPropert", "patternProperties"),
    ("min/maxProperties", "minProperties"),
    ("multiple of", "multipleOf"),
    ("Failed to generate regex", "minimum"),
    ("minLength", "minLength"),
    ("minItems", "minItems"),
    ("exclusiveMinimum", "exclusiveMinimum"),
    ("exclusiveMaximum", "exclusiveMaximum"),
    ("maximum", "maximum"),
    ("minimum", "minimum"),
    ("$ref", "$ref"),
    ("Pointer '", "$ref"),
)
"""Texts of the library, each with the keyword at fault."""

_POSITION = re.compile(r"(?:^|\bat )(\d{1,9})\((\d{1,9})\)")
_QUOTED_LINE = re.compile(r"^ *\d+ \| .*\n?", re.MULTILINE)  # a line of the constraint


def _without_quotes(said: str) -> str:
    """Return the library's text without the lines of the constraint that it quotes."""
    return _QUOTED_LINE.sub("", said)


def keyword_of(said: str) -> str:
    """Return the schema keyword because of which the library refused a constraint.

    If the library's text names none, use the first one that the quoted schema has. Return an empty
    text if the keyword is unknown.
    """
    unquoted = _without_quotes(said)
    _, is_listed, listed = unquoted.partition("Unimplemented keys")
    if is_listed:
        return next((word for word in KEYWORDS if f'"{word}"' in listed), "")
    return next(
        (keyword for text in (unquoted, said) for theirs, keyword in FAULTY if theirs in text), ""
    )


def has_too_many_states(said: str) -> bool:
    """Tell whether the library stopped at its limit of lexer states."""
    return "too many states" in _without_quotes(said)


def reason_of(said: str, num_lines: int | None = None) -> str:
    """Return why the library refused a constraint.

    Args:
        said: the library's text.
        num_lines: the lines before the client's own; None leaves positions out.
    """
    said = _without_quotes(said)
    kind = next((ours for theirs, ours in KINDS if theirs in said), "it is not understood")
    if kind == dict(KINDS)["Unimplemented keys"]:
        _, _, listed = said.partition("Unimplemented keys")
        if named := [word for word in KEYWORDS if f'"{word}"' in listed]:
            kind = f"it uses {', '.join(named)}, which is not supported"
    if num_lines is not None and (found := _POSITION.search(said)):
        kind = f"{kind} (line {int(found[1]) - num_lines}, column {found[2]})"
    return kind
