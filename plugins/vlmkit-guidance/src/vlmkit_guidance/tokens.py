"""A model's vocabulary in the form that llguidance reads.

Forced text becomes the tokens of the model's own tokenizer: a model continues best from tokens that
it knows from training.
"""

import logging
from collections.abc import Iterator

from vlmkit.interfaces.constraint import Vocabulary

log = logging.getLogger(__name__)

END = b"<end>"


class Tokens:
    """The tokenizer object that ``llguidance.LLTokenizer`` reads.

    The end of an answer is an additional token after all others, which no model has: the pipeline
    handles the ends of answers.

    Args:
        vocabulary: the model's vocabulary.
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
        """Return the token with exactly these bytes; None if there is none."""
        return self._ids.get(piece)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return token ids for a text, as far as the vocabulary covers it; never raises."""
        written = text.encode() if isinstance(text, str) else text
        try:
            usual = [int(token_id) for token_id in self._encode(written.decode())]
            if b"".join(self.tokens[token_id] for token_id in usual) == written:
                return usual
        except Exception:  # an exception would abort the whole process in the library
            log.debug("a tokenizer failed on a forced text", exc_info=True)
        return list(self._longest_first(written))

    def _longest_first(self, rest: bytes) -> Iterator[int]:
        """Yield the longest token at each position of a text."""
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next((size for size in sizes if rest[:size] in self._ids), None)
            if size is None:
                return
            yield self._ids[rest[:size]]
            rest = rest[size:]
