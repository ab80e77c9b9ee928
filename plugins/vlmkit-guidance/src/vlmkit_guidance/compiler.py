"""Compiles constraints by llguidance, within bounds of time and memory.

Says why a constraint is refused in words of ours: the library's may quote what a client sent.
Large numbers in a constraint were refused before, by :mod:`vlmkit.running.constraints.limits`.
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
NO_FORCING = '%llguidance {"no_forcing": true}'  # what the library forces has no bound of length

FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6"),
        *("uri", "uuid", "unknown"),
    }
)

# What patterns have elsewhere, and not here: look-around, back-references, edges of words.
_OTHER_PATTERNS = re.compile(
    r"(?P<other>\\(?:[1-9]|k[<{]|[bBZGcK])|\(\?(?:[=!>|(]|<[=!]|P[=>]|R))"
    r"|\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?",
    re.DOTALL,
)

# Comments, texts, patterns and tokens of a grammar; and "and" or "not", but no number of times.
_PIECES = re.compile(
    r'(?:#|//)[^\n]*|"(?:\\.|[^"\\\n])*+"?|/(?:\\.|[^/\\])*+/?|<[^<>\s]+>'
    r"|(?P<logic>&|~(?![ \t]*\d))"
)


class GuidanceCompiler:
    """Compiles for one vocabulary.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = Tokens(vocabulary)
        self._tokenizer = LLTokenizer(TokenizerWrapper(self._tokens))

    @property
    def schema_support(self) -> SchemaSupport:
        """Which schemas the library takes."""
        return SchemaSupport(frozenset(KEYWORDS), FORMATS, takes_pattern)

    def compile(self, constraint: Constraint) -> MakeMatcher:
        """Compile a constraint, and compute its first mask: some are too complex for one."""
        num_lines = NO_FORCING.count("\n") + 1 if _has_lines(constraint) else None
        grammar = Grammar(f"{NO_FORCING}\n{_grammar(constraint)}", self._tokenizer, num_lines)
        return lambda: GuidanceMatcher(grammar, self._tokens)


def takes_pattern(pattern: str) -> bool:
    """Tell whether a regular expression has only what the library's have, by its syntax."""
    return not any(found["other"] for found in _OTHER_PATTERNS.finditer(pattern))


def _has_lines(constraint: Constraint) -> bool:
    """Tell whether a position in the grammar is one of what the client wrote."""
    return isinstance(constraint, Lark) and not constraint.schemas


def _grammar(constraint: Constraint) -> str:
    """Return a constraint as a grammar of llguidance's kind."""
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
            # In capitals it is one pattern, and not a rule with a branch for each text.
            return f"start: TEXT\nTEXT: {' | '.join(quoted)}"
        case Lark(rules=rules, schemas=schemas, tokens=tokens):
            _refuse_logic(rules)
            named = [f"{name}: %json {_inner(schema.text)}" for name, schema in schemas]
            named += [f"{name}: <[{token_id}]>" for name, token_id in tokens]
            return "\n".join([rules, *named])


def _refuse_logic(rules: str) -> None:
    """Refuse what no limit of the library holds: whether such patterns match anything at all.

    Raises:
        ConstraintError: a grammar wants what several patterns match, or what one does not.
    """
    if any(found["logic"] for found in _PIECES.finditer(rules)):
        raise ConstraintError(
            "a grammar may not join patterns by & or turn one around by ~: compiling them has no "
            "bound of time",
            hint="write one pattern",
        )


def _quoted(text: str) -> str:
    """Return a text as grammars write it: as JSON does, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _form() -> "JsonCompileOptions":
    return {
        "item_separator": ", ",
        "key_separator": ": ",
        "whitespace_flexible": False,
        "lenient": False,
    }


def _inner(schema: str) -> str:
    """Return a schema as it stands in a grammar; its JSON is written like that of others."""
    own = json.loads(schema)
    if own is False:
        return '{"not": {}}'
    return json.dumps((own if isinstance(own, dict) else {}) | {"x-guidance": _form()})
