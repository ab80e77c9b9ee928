"""Compiles constraints by llguidance, within bounds of time and memory.

What the library says of a constraint goes to the log: it may quote what a client sent.
"""

import json
import re
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from vlmkit.ask.constraint import Constraint, JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit.errors import ConstraintError
from vlmkit.seams.constraint import MakeMatcher, Vocabulary
from vlmkit_guidance.matcher import GuidanceMatcher, failed
from vlmkit_guidance.tokens import Tokens

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_LEXER_STATES = 20_000  # of one constraint, about 2 kB each
MAX_ITEMS = 1_000  # ways to read an answer; time grows with their square, to tens of ms for a mask

# Comments, texts, patterns and tokens of a grammar; and "and" or "not", but no number of times.
_PIECES = re.compile(
    r'(?:#|//)[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\])+/|<[^<>\s]+>'
    r"|(?P<logic>&|~(?![ \t]*\d))"
)


class GuidanceCompiler:
    """Compiles for one vocabulary.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(Tokens(vocabulary)))
        self._limits = LLParserLimits(
            max_items_in_row=MAX_ITEMS, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
        )

    def compile(self, constraint: Constraint) -> MakeMatcher:
        """Compile a constraint, and try it: some turn out to be too complex at the first mask."""
        try:
            grammar = _grammar(constraint)
        except ValueError as error:
            raise failed("the constraint cannot be compiled", str(error)) from error
        first = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if not first.is_error():
            first.compute_ff_tokens()
            first.compute_bitmask()
        if first.is_error():
            raise failed("the constraint cannot be compiled", first.get_error())
        return lambda: GuidanceMatcher(first.deep_copy(), self._tokenizer.vocab_size - 1)


def _grammar(constraint: Constraint) -> str:
    """Return a constraint as llguidance reads it."""
    match constraint:
        case JsonSchema(text):
            return _json("{}" if json.loads(text) is True else text)
        case JsonObject():
            return _json('{"type":"object"}')
        case Regex(pattern):
            return LLMatcher.grammar_from_regex(pattern)
        case OneOf(texts):
            quoted = map(_quoted, texts)
            # In capitals it is one pattern, and not a rule with a branch for each text.
            return LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {' | '.join(quoted)}")
        case Lark(rules, schemas, tokens):
            _refuse_logic(rules)
            named = [f"{name}: %json {_inner(schema.text)}" for name, schema in schemas]
            named += [f"{name}: <[{token_id}]>" for name, token_id in tokens]
            return LLMatcher.grammar_from_lark("\n".join([rules, *named]))


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


def _json(schema: str) -> str:
    """Return JSON as Python writes it, on one line; a keyword that is not known is an error."""
    return LLMatcher.grammar_from_json_schema(schema, overrides=_form())


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
