"""Tokens to text, one at a time, and tokens to bytes."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class HfTokenStream:
    """One answer's incremental detokenizer; returns whole characters only.

    Args:
        tokenizer: the family's tokenizer.
        num_ids: the number of ids in the vocabulary.
        shows_special: whether the text includes special tokens.
        after: preceding tokens, whose text the answer continues: a leading space is then kept.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        num_ids: int,
        *,
        shows_special: bool = False,
        after: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._num_ids = num_ids
        self._skips_special = not shows_special
        self._restart(after)

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; may be empty."""
        if not 0 <= token_id < self._num_ids:
            return ""
        try:
            text = self._stream.step(self._tokenizer, token_id)
        except Exception:  # noqa: BLE001 - tokenizers raises bare Exceptions only
            # Invalid bytes changed the text of earlier tokens, which has been returned already.
            self._restart()
            text = self._stream.step(self._tokenizer, token_id)
        self._ids.append(token_id)
        self._holds_back = not text
        if not text:
            return ""
        self._num_shown += len(text)
        return text

    def flush(self) -> str:
        """Return the text that was held back; invalid bytes become U+FFFD."""
        if not self._holds_back:
            return ""
        self._holds_back = False
        return self._text()[self._num_shown :]

    def _text(self) -> str:
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=self._skips_special)
        return text

    def _restart(self, after: Sequence[int] = ()) -> None:
        self._stream = DecodeStream(list(after), skip_special_tokens=self._skips_special)
        self._ids = list(after)
        self._num_shown = len(self._text()) if after else 0
        self._holds_back = False


class TokenBytes:
    """Maps tokens to bytes, by the kind of the tokenizer's decoder.

    Args:
        tokenizer: the family's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {
            token_id: token.content.encode()
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        kinds = _kinds(json.loads(_decoder_json(tokenizer)))
        self._is_byte_level = "ByteLevel" in kinds
        self._falls_back = "ByteFallback" in kinds

    def __call__(self, token_id: int) -> bytes:
        """Return the token's bytes; empty for an id without a token."""
        if token_id in self._added:
            return self._added[token_id]
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            table = _byte_of_letter()
            return bytes(table[letter] for letter in token if letter in table)
        if self._falls_back and len(token) == 6 and token.startswith("<0x") and token[5] == ">":
            return bytes([int(token[3:5], 16)])
        return str(token).replace("▁", " ").encode()


def _decoder_json(tokenizer: Tokenizer) -> str:
    decoder = tokenizer.decoder
    return "{}" if decoder is None else decoder.__getstate__().decode()


def _kinds(decoder: dict[str, Any]) -> set[str]:
    return {str(decoder.get("type"))}.union(*map(_kinds, decoder.get("decoders", ())))


@cache
def _byte_of_letter() -> dict[str, int]:
    """Return the byte for each letter of a byte-level vocabulary.

    Printable bytes of Latin-1 are their own letters. Letters from U+0100 on stand for the others.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + place): byte for place, byte in enumerate(others)}
