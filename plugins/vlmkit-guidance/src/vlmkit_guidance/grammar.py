"""A compiled grammar, and the lexer states that its answers share.

llguidance derives lexer states while an answer is followed, and all copies of a matcher keep them
together. The answers of one grammar share a lexer with few states, so that a cached grammar stays
small. An answer that needs more states gets a lexer of its own, whose memory goes with the answer.
Follows no answer and writes no mask.
"""

import time

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from vlmkit.errors import ConstraintError
from vlmkit_guidance.reasons import has_too_many_states, keyword_of, reason_of

MAX_SHARED_STATES = 2_000  # of all answers of one grammar together, 0.6 to 2 kB each
MAX_OWN_STATES = 20_000  # of one answer
MAX_ITEMS = 800  # ways to read an answer; time grows with their square, to 50 ms for a mask
MAX_RECOMPILE_S = 0.05  # CPU time, within a decode step of all answers


def _limits(max_states: int) -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=MAX_ITEMS, max_lexer_states=max_states, verbose_errors=False
    )


class Grammar:
    """A compiled grammar.

    Args:
        text: the grammar in llguidance's notation.
        tokenizer: the model's tokenizer.
        num_lines: the lines of the text before the client's own; None if a line number has no
            meaning for the client.

    Raises:
        ConstraintError: the grammar cannot be compiled, or its first mask is too complex.
    """

    def __init__(self, text: str, tokenizer: LLTokenizer, num_lines: int | None = None) -> None:
        self._text = text
        self._tokenizer = tokenizer
        self._num_lines = num_lines
        began_s = time.thread_time()
        first = self._compiled(MAX_SHARED_STATES)
        self._shared = None if first.is_error() else first
        if first.is_error() and has_too_many_states(first.get_error()):
            first = self._compiled(MAX_OWN_STATES)
        self._check(first)
        self._compile_s = time.thread_time() - began_s

    def matcher(self) -> tuple[LLMatcher, bool]:
        """Return an initial matcher to copy, and whether no other answer uses its lexer.

        Compiles the grammar again if an answer has used up the shared states.

        Raises:
            ConstraintError: the grammar cannot be compiled again.
        """
        shared = self._shared
        if shared is not None:
            return shared, False
        own = self._compiled(MAX_OWN_STATES)
        self._check(own)
        return own, True

    def own_matcher(self) -> LLMatcher | None:
        """Return a matcher with a lexer of its own, for an answer that used up the shared states.

        Later answers get lexers of their own at once, compiled before their first token.

        Returns:
            The matcher, at the beginning; None if compiling takes too long within a decode step.
        """
        self._shared = None
        if self._compile_s > MAX_RECOMPILE_S:
            return None
        own = self._compiled(MAX_OWN_STATES)
        return None if own.is_error() else own

    def _compiled(self, max_states: int) -> LLMatcher:
        """Return a matcher whose first mask is computed: some grammars are too complex for one."""
        made = LLMatcher(self._tokenizer, self._text, log_level=0, limits=_limits(max_states))
        if not made.is_error():
            made.compute_bitmask()
        return made

    def _check(self, made: LLMatcher) -> None:
        if made.is_error():
            reason = reason_of(made.get_error(), self._num_lines)
            raise ConstraintError(
                f"the constraint cannot be compiled: {reason}",
                keyword=keyword_of(made.get_error()),
            )
