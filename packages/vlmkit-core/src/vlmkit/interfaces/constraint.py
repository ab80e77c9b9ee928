"""The interface of constraint compilers, which say what tokens may follow; no implementation.

A compiler is built for the vocabulary of a model when the first request has a constraint. A server
builds it before it is ready, because building may hold the GIL. Compilers do not handle tokens that
end an answer: the pipeline allows those exactly where the text may end.
"""

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from vlmkit.types.constraint import Constraint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary that an answer consists of.

    Attributes:
        token_bytes: the bytes that each token adds to the text, by token id. Empty for tokens that
            must not be chosen, end the answer or are not shown.
        encode: returns the token ids of a text by the model's tokenizer. Some tokenizers put a
            space before the text.
    """

    token_bytes: Seq[bytes]
    encode: Callable[[str], Seq[int]]


class Matcher(Protocol):
    """Tracks the grammar state of one answer, and computes the mask of its next tokens.

    Its methods run in the engine loop's thread, so every answer waits for them. A matcher that
    cannot continue must raise: the request then ends with an error, never without its constraint.
    """

    def fill(self, mask: "NDArray[np.int32]") -> None:
        """Set the bits of the tokens that may follow.

        The set must depend only on the accepted tokens. A token that adds nothing to the text is
        allowed only where a grammar names it. Where only one text can follow, allowing its usual
        tokens is enough.

        Args:
            mask: ``[ceil(vocab / 32)]`` zeros; token ``i`` is bit ``i % 32`` of word ``i // 32``.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by a token and return True; if it is not allowed, return False unchanged."""
        ...

    def roll_back(self, num_tokens: int) -> None:
        """Undo the newest accepted tokens; never more than were accepted."""
        ...

    def forced(self) -> Seq[int]:
        """Return the next tokens where the constraint allows only one text.

        The engine computes them as drafts, and the sampler still chooses. A matcher may always
        return an empty sequence.
        """
        ...

    @property
    def may_end(self) -> bool:
        """Whether the text so far is complete."""
        ...


@runtime_checkable
class Resettable(Protocol):
    """An optional method of a matcher: it can return to the beginning.

    If a method raises while the matcher looks ahead of the answer, the matcher is reset and accepts
    the answer's tokens again. Without this method, a new matcher is created in the loop's thread.
    """

    def reset(self) -> None:
        """Return to the beginning of the answer; works also after a method raised an error."""
        ...


MakeMatcher = Callable[[], Matcher]
"""Creates a fresh matcher for one answer. Called from several threads at once."""


class ConstraintCompiler(Protocol):
    """Compiles constraints for one vocabulary."""

    def compile(self, constraint: Constraint) -> MakeMatcher:
        """Compile a constraint in bounded time; called from several worker threads at once.

        Raises:
            ConstraintError: the constraint is invalid, too large, or of a kind that this compiler
                does not support.
        """
        ...


@dataclass(frozen=True, slots=True)
class SchemaSupport:
    """The parts of JSON Schema that a compiler enforces.

    Attributes:
        unsupported: keywords that it refuses.
        formats: values of ``format`` that it enforces; None if it accepts any.
        takes_pattern: returns whether it supports the syntax of a regular expression. It is called
            with up to 65,536 characters, and must take time linear in their number.
    """

    unsupported: frozenset[str] = frozenset()
    formats: frozenset[str] | None = None
    takes_pattern: Callable[[str], bool] = bool


@runtime_checkable
class DeclaresSchemaSupport(Protocol):
    """An optional property of a compiler: it declares the schemas that it supports.

    Unsupported keywords are then removed from schemas that are not strict, each where it occurs,
    before anything is compiled. Without this property, the ``keyword`` of the compiler's
    ``ConstraintError`` says what to remove. Without a keyword, the whole schema is dropped.
    """

    @property
    def schema_support(self) -> SchemaSupport:
        """The supported parts of JSON Schema; constant."""
        ...
