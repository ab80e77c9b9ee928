"""What a constraint compiler must do: say which tokens may follow. No implementation.

A compiler is built for the vocabulary of the model, when the first request asks for a constraint;
for a server before that is ready, since building may let no other thread run.
The tokens that end an answer are not its business: the pipeline allows them where the text may end,
and nowhere else.
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
    """What an answer is made of.

    Attributes:
        token_bytes: what each token adds to the text, by its id; nothing for those that may not be
            chosen, end the answer or are not shown.
        encode: returns the tokens that the model's tokenizer makes of a text. Some put a space
            before it.
    """

    token_bytes: Seq[bytes]
    encode: Callable[[str], Seq[int]]


class Matcher(Protocol):
    """Follows one answer and knows how it may go on.

    Its methods run in the loop's thread: what they take, every answer waits for. One that can go
    no further than this raises; the request then ends with an error, never without its constraint.
    """

    def fill(self, mask: "NDArray[np.int32]") -> None:
        """Set the bits of the tokens that may follow, in ``[ceil(vocab / 32)]`` zeros.

        Token ``i`` is bit ``i % 32`` of word ``i // 32``. Which they are depends on the tokens that
        were accepted, and on nothing else. A token that adds nothing to the text follows
        only where a grammar names it; where only one text can, its usual tokens will do.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Go on by a token; where the constraint does not allow it, stay and return False."""
        ...

    def roll_back(self, num_tokens: int) -> None:
        """Take the newest tokens back, at most as many as were accepted."""
        ...

    def forced(self) -> Seq[int]:
        """Return the tokens with which the text goes on wherever there is but one text.

        They are computed as drafts: the sampler still chooses. None is always an answer.
        """
        ...

    @property
    def may_end(self) -> bool:
        """Whether the text is whole as it is."""
        ...


@runtime_checkable
class Resettable(Protocol):
    """An optional part of a matcher: it returns to the beginning.

    A matcher whose method raised an error while it looked ahead of the answer is reset and follows
    the answer again. Without it, another matcher is made, in the loop's thread.
    """

    def reset(self) -> None:
        """Return to the beginning of the answer, also after a method raised an error."""
        ...


MakeMatcher = Callable[[], Matcher]
"""Makes a matcher that has seen nothing yet, for one answer. Called in several threads at once."""


class ConstraintCompiler(Protocol):
    """Compiles constraints for one vocabulary."""

    def compile(self, constraint: Constraint) -> MakeMatcher:
        """Compile a constraint; runs in several worker threads at once, and takes bounded time.

        Raises:
            ConstraintError: it makes no sense, is too large, or of a form that this one does not
                take.
        """
        ...


@dataclass(frozen=True, slots=True)
class SchemaSupport:
    """Which parts of JSON Schema a compiler enforces.

    Attributes:
        unsupported: keywords that it refuses.
        formats: values of ``format`` that it enforces; None where it takes any.
        takes_pattern: returns whether it takes a regular expression, as far as its syntax tells;
            called with up to 65,536 characters, it takes time proportional to them.
    """

    unsupported: frozenset[str] = frozenset()
    formats: frozenset[str] | None = None
    takes_pattern: Callable[[str], bool] = bool


@runtime_checkable
class DeclaresSchemaSupport(Protocol):
    """An optional part of a compiler: it declares which schemas it takes.

    Keywords that it does not take are then left out of schemas that are not strict, each at its
    place, before anything is compiled. Without it, the ``keyword`` of the ``ConstraintError`` that
    the compiler raises says what to leave out; without that, a schema is left out as a whole.
    """

    @property
    def schema_support(self) -> SchemaSupport:
        """What it takes; never changes."""
        ...
