"""Compiles constraints with llguidance, within bounds of time and memory.

Error messages come from :mod:`vlmkit_guidance.reasons`, since the library's may quote the client.
:mod:`vlmkit.running.constraints.limits` has refused large numbers in a constraint before.
"""

import json
import re
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import MakeMatcher, SchemaSupport, Vocabulary
from vlmkit.types.constraint import Constraint, JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit_guidance.grammar import Grammar
from vlmkit_guidance.matcher import GuidanceMatcher
from vlmkit_guidance.reasons import KEYWORDS
from vlmkit_guidance.tokens import Tokens

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

ANY_OBJECT = '{"type": "object"}'
NO_FORCING = '%llguidance {"no_forcing": true}'  # the library's forced text has no bound of length

FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6"),
        *("uri", "uuid", "unknown"),
    }
)

# Syntax of other regular expressions: look-around, back-references, word boundaries.
_OTHER_PATTERNS = re.compile(
    r"(?P<other>\\(?:[1-9]|k[<{]|[bBZGcK])|\(\?(?:[=!>|(]|<[=!]|P[=>]|R))"
    r"|\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?",
    re.DOTALL,
)

# Comments, texts, patterns and tokens of a grammar; and "&" or "~", but no number of repetitions.
_PIECES = re.compile(
    r'(?:#|//)[^\n]*|"(?:\\.|[^"\\\n])*+"?|/(?:\\.|[^/\\])*+/?|<[^<>\s]+>'
    r"|(?P<logic>&|~(?![ \t]*\d))"
)


class GuidanceCompiler:
    """Compiles constraints for one vocabulary.

    Args:
        vocabulary: the model's vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = Tokens(vocabulary)
        self._tokenizer = LLTokenizer(TokenizerWrapper(self._tokens))

    @property
    def schema_support(self) -> SchemaSupport:
        """The schemas that the library supports."""
        return SchemaSupport(frozenset(KEYWORDS), FORMATS, takes_pattern)

    def compile(self, constraint: Constraint) -> MakeMatcher:
        """Compile a constraint and compute its first mask, which some are too complex for."""
        num_lines = NO_FORCING.count("\n") + 1 if _has_lines(constraint) else None
        grammar = Grammar(f"{NO_FORCING}\n{_grammar(constraint)}", self._tokenizer, num_lines)
        return lambda: GuidanceMatcher(grammar, self._tokens)


def takes_pattern(pattern: str) -> bool:
    """Tell whether a regular expression has only syntax that the library supports."""
    return not any(found["other"] for found in _OTHER_PATTERNS.finditer(pattern))


def _has_lines(constraint: Constraint) -> bool:
    """Tell whether a position in the grammar is one in the client's text."""
    return isinstance(constraint, Lark) and not constraint.schemas


def _grammar(constraint: Constraint) -> str:
    """Return a constraint as a grammar in llguidance's notation."""
    match constraint:
        case JsonSchema(text=text):
            return f"start: %json {_inner(text)}"
        case JsonObject():
            return f"start: %json {_inner(ANY_OBJECT)}"
        case Regex(pattern):
            (grammar,) = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
            return str(grammar["lark_grammar"])
        case OneOf(texts):
            quoted = map(_quoted, texts)
            # A name in capitals is one pattern, not a rule with a branch for each text.
            return f"start: TEXT\nTEXT: {' | '.join(quoted)}"
        case Lark(rules=rules, schemas=schemas, tokens=tokens):
            _refuse_logic(rules)
            named = [f"{name}: %json {_inner(schema.text)}" for name, schema in schemas]
            named += [f"{name}: <[{token_id}]>" for name, token_id in tokens]
            return "\n".join([rules, *named])


def _refuse_logic(rules: str) -> None:
    """Refuse intersection and complement of patterns: no limit of the library bounds their time.

    Raises:
        ConstraintError: a grammar has ``&`` or ``~``.
    """
    if any(found["logic"] for found in _PIECES.finditer(rules)):
        raise ConstraintError(
            "a grammar may not join patterns by & or turn one around by ~: compiling them has no "
            "bound of time",
            hint="write one pattern",
        )


def _quoted(text: str) -> str:
    """Return a text in the notation of grammars, which is that of JSON except for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _form() -> "JsonCompileOptions":
    return {
        "item_separator": ", ",
        "key_separator": ": ",
        "whitespace_flexible": False,
        "lenient": False,
    }


def _inner(schema: str) -> str:
    """Return a schema for a grammar, with the spacing of JSON that other engines write."""
    value = json.loads(schema)
    if value is False:
        return '{"not": {}}'
    return json.dumps((value if isinstance(value, dict) else {}) | {"x-guidance": _form()})
