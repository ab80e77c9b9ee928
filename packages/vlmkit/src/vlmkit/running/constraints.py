"""From a constraint to what keeps each answer within it: compiled once, and kept a while.

The compiler wants the bytes of each token, and may let no other thread run while it is made: it is
made when the first constraint is asked for, or before, by whoever must not stand still then. Runs
in the threads that read prompts; knows no request and no answer.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence as Seq

from vlmkit.ask.constraint import Constraint, Lark
from vlmkit.errors import VlmkitError
from vlmkit.running.bits import words_of
from vlmkit.running.blame import UNKNOWN, Makers
from vlmkit.running.guide import Guide
from vlmkit.running.isolation import engine_error
from vlmkit.seams.constraint import ConstraintCompiler, MakeMatcher, Vocabulary
from vlmkit.seams.tokenizer import Tokenizer

MakeCompiler = Callable[[Vocabulary], ConstraintCompiler]

MAX_KEPT = 64  # compiled constraints


class Constraints:
    """Compiles constraints for one model.

    Args:
        make: makes the compiler.
        tokenizer: knows the tokens.
        vocab_size: columns of the logits.
        eos_ids: tokens that end an answer.
        banned_ids: tokens that must never be chosen.
        makers: who made the compiler.
    """

    def __init__(
        self,
        make: MakeCompiler,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_ids: frozenset[int],
        banned_ids: Seq[int],
        makers: Makers = UNKNOWN,
    ) -> None:
        self._make = make
        self._makers = makers
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._silent = eos_ids.union(banned_ids)
        self._ends = words_of(eos_ids, vocab_size)
        self._free = self._ends
        self._compiler: ConstraintCompiler | None = None
        self._making = threading.Lock()
        self._kept: OrderedDict[tuple[bytes, Constraint], MakeMatcher] = OrderedDict()
        self._keeping = threading.Lock()

    def prepare(self) -> None:
        """Make the compiler now; harmless when it is there.

        Raises:
            EngineError: what it is made of could not be had.
            PluginError: it could not be built.
        """
        try:
            self._ready_compiler()
        except VlmkitError:
            raise
        except Exception as error:  # a tokenizer may raise anything
            raise engine_error(
                "the compiler of constraints could not be made", error, repeats=True
            ) from error

    def guides(self, constraint: Constraint, num: int, scope: bytes = b"") -> list[Guide]:
        """Return what keeps so many answers within a constraint, each by itself.

        Args:
            constraint: what answers must keep to.
            num: of the answers.
            scope: whose it is: nobody learns from the time that it takes what others sent.

        Raises:
            ConstraintError: the constraint makes no sense.
            EngineError: the compiler failed.
            PluginError: it could not be built.
        """
        try:
            make = self._compiled(constraint, scope)
            free = self._free
            if isinstance(constraint, Lark) and constraint.tokens:
                named = (token_id for _, token_id in constraint.tokens)
                free = free | words_of(named, self._vocab_size)
            return [Guide(make, free, self._ends) for _ in range(num)]
        except VlmkitError:
            raise
        except Exception as error:  # a compiler may raise anything
            who = self._makers.of("constraint")
            raise engine_error(f"{who} could not be compiled", error, repeats=True) from error

    def _compiled(self, constraint: Constraint, scope: bytes) -> MakeMatcher:
        with self._keeping:
            if (scope, constraint) in self._kept:
                self._kept.move_to_end((scope, constraint))
                return self._kept[scope, constraint]
        make = self._ready_compiler().compile(constraint)
        with self._keeping:
            self._kept[scope, constraint] = make
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return make

    def _ready_compiler(self) -> ConstraintCompiler:
        with self._making:
            if self._compiler is None:
                self._compiler = self._new_compiler()
            return self._compiler

    def _new_compiler(self) -> ConstraintCompiler:
        token_bytes = [self._added_by(token_id) for token_id in range(self._vocab_size)]
        spoken = (token_id for token_id, added in enumerate(token_bytes) if added)
        self._free = words_of(spoken, self._vocab_size)
        return self._make(Vocabulary(token_bytes, self._tokenizer.encode))

    def _added_by(self, token_id: int) -> bytes:
        """Return what a token adds to an answer's text; special ones stand for words that do not.

        A space at the beginning of a text may be dropped, so it says nothing of a token.
        """
        if token_id in self._silent or token_id >= self._tokenizer.vocab_size:
            return b""
        added = self._tokenizer.token_bytes(token_id)
        is_heard = added.isspace() or self._tokenizer.decode([token_id])
        return added if is_heard else b""
