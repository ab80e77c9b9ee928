"""Keeps answers to a list of texts: one of them, whole, and nothing else.

Needs no library. The tokens that may follow are cached by the bytes so far, so they are computed
once for each prefix, for all answers.
"""

from collections.abc import Iterator, Sequence as Seq
from typing import TYPE_CHECKING

import vlmkit
from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import ConstraintCompiler, MakeMatcher, Vocabulary
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.types.constraint import Constraint, OneOf

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VLMKIT_API = (1, 0)


class Choice:
    """Some texts, and the tokens with which they go on; shared by all answers that choose.

    Args:
        texts: to choose from, as UTF-8.
        token_bytes: what each token adds.
        token_ids: the tokens that add some bytes.
    """

    def __init__(
        self, texts: Seq[bytes], token_bytes: Seq[bytes], token_ids: dict[bytes, list[int]]
    ) -> None:
        self.texts = frozenset(texts)
        self.token_bytes = token_bytes
        self._token_ids = token_ids
        self._longest = max(map(len, token_ids), default=0)
        self._following: dict[bytes, frozenset[int]] = {}
        self.following(b"")  # now, in a worker thread: this is the longest list

    def following(self, prefix: bytes) -> frozenset[int]:
        """Return the tokens that may follow the text so far."""
        if prefix not in self._following:
            pieces = {piece for rest in self.rests(prefix) for piece in self._pieces(rest)}
            ids = (i for piece in pieces for i in self._token_ids.get(piece, ()))
            self._following[prefix] = frozenset(ids)
        return self._following[prefix]

    def rests(self, prefix: bytes) -> list[bytes]:
        """Return the rest of each text that begins with the text so far."""
        return [text[len(prefix) :] for text in self.texts if text.startswith(prefix)]

    def usual(self, rest: bytes) -> Iterator[int]:
        """Yield the tokens of a text, each the longest that fits."""
        while rest:
            known = [piece for piece in self._pieces(rest) if piece in self._token_ids]
            if not known:
                return
            yield self._token_ids[known[-1]][0]
            rest = rest[len(known[-1]) :]

    def _pieces(self, rest: bytes) -> list[bytes]:
        return [rest[:stop] for stop in range(1, min(len(rest), self._longest) + 1)]


class ChoiceMatcher:
    """Follows one answer; see :class:`vlmkit.interfaces.constraint.Matcher`.

    Args:
        choice: the texts.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._prefixes = [b""]  # after each token that was accepted

    @property
    def may_end(self) -> bool:
        """Whether the text so far is one of the texts."""
        return self._prefixes[-1] in self._choice.texts

    def fill(self, mask: "NDArray[np.int32]") -> None:
        """Set the bits of the tokens that may follow."""
        import numpy as np

        words = mask.view(np.uint32)
        for token_id in self._choice.following(self._prefixes[-1]):
            words[token_id // 32] |= np.uint32(1 << token_id % 32)

    def accept(self, token_id: int) -> bool:
        """Go on by a token; where no text does, stay and return False."""
        if token_id not in self._choice.following(self._prefixes[-1]):
            return False
        self._prefixes.append(self._prefixes[-1] + self._choice.token_bytes[token_id])
        return True

    def roll_back(self, num_tokens: int) -> None:
        """Take the newest tokens back."""
        del self._prefixes[len(self._prefixes) - num_tokens :]

    def forced(self) -> Seq[int]:
        """Return the rest of the text, where only one is left."""
        rests = self._choice.rests(self._prefixes[-1])
        return tuple(self._choice.usual(rests[0])) if len(rests) == 1 else ()


class ChoiceCompiler:
    """Takes lists of texts to choose from.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._token_bytes = vocabulary.token_bytes
        self._token_ids: dict[bytes, list[int]] = {}
        for token_id, added in enumerate(vocabulary.token_bytes):
            if added:
                self._token_ids.setdefault(bytes(added), []).append(token_id)

    def compile(self, constraint: Constraint) -> MakeMatcher:
        """Return what makes a matcher.

        Raises:
            ConstraintError: it is something else than a list of texts.
        """
        if not isinstance(constraint, OneOf):
            raise ConstraintError(
                "only lists of texts to choose from can be kept to here",
                hint="for schemas, patterns and grammars: install vlmkit-guidance",
            )
        texts = [text.encode() for text in constraint.texts]
        choice = Choice(texts, self._token_bytes, self._token_ids)
        return lambda: ChoiceMatcher(choice)


def _build(context: BuildContext) -> ConstraintCompiler:
    return ChoiceCompiler(context.words)


@vlmkit.hookimpl
def vlmkit_register_constraints(registry: Registry[ConstraintCompiler]) -> None:
    """Offer ``constraint.use = "yourname"``."""
    registry.add("yourname", _build, description="lists of texts to choose from")
