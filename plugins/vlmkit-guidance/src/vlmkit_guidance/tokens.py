"""A model's tokens, as llguidance asks for them.

Where only one text can follow, its tokens are those of the model's tokenizer: a model writes best
what it has read.
"""

import logging
from collections.abc import Iterator

from vlmkit.interfaces.constraint import Vocabulary

log = logging.getLogger(__name__)

END = b"<end>"


class Tokens:
    """What ``llguidance.LLTokenizer`` reads.

    The end of an answer is a token of its own behind all others, which no model has: ends are the
    pipeline's business.

    Args:
        vocabulary: of the model.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        self.eos_token_id = len(vocabulary.token_bytes)
        self.special_token_ids = [self.eos_token_id]
        self.tokens = [*vocabulary.token_bytes, END]
        self._ids = {added: token_id for token_id, added in enumerate(self.tokens) if added}
        self._longest = max(map(len, self._ids))

    def id_of(self, piece: bytes) -> int | None:
        """Return a token that adds just this, if there is one."""
        return self._ids.get(piece)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return token ids that write a text, as far as tokens can; raises nothing."""
        written = text.encode() if isinstance(text, str) else text
        try:
            usual = [int(token_id) for token_id in self._encode(written.decode())]
            if b"".join(self.tokens[token_id] for token_id in usual) == written:
                return usual
        except Exception:  # the library would take the whole process down
            log.debug("a tokenizer failed on a forced text", exc_info=True)
        return list(self._longest_first(written))

    def _longest_first(self, rest: bytes) -> Iterator[int]:
        """Yield the longest token that a text begins with, and so on."""
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next((size for size in sizes if rest[:size] in self._ids), None)
            if size is None:
                return
            yield self._ids[rest[:size]]
            rest = rest[size:]
