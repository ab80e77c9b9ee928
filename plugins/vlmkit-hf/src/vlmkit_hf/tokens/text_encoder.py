"""Text to token ids, where only trusted text can become a control token.

One encoder call tokenizes a whole prompt. So harmless text has the ids of the family's own
tokenizer: no cut between template text and client text changes how they are split.

The encoder's copy of the tokenizer recognizes no control token. Each has a *twin*: an added token
with the same behaviour and an unguessable spelling. Control tokens of trusted text are replaced by
twins before encoding, and twins' ids by the real ids afterwards. Client text cannot spell a twin.
"""

import re
import secrets
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from tokenizers import AddedToken, Tokenizer

from vlmkit.errors import RequestError
from vlmkit_hf.templates.stand_ins import Segment

SLOT = -1  # stands for an image among token ids; no token has this id
MAX_PASSES = 16  # each pass reads the whole text, and cuts wherever that is needed
LONG_CHARS = 2**12
CACHED_CHARS = 2**10  # of a cached text; a template's text may hold a client's white space

T = TypeVar("T")


class Expansion(NamedTuple):
    """An image's tokens, and the ordinary text that its family puts around them."""

    head: str
    token_ids: tuple[int, ...]
    tail: str


class TextEncoder:
    """Encodes prompts; thread-safe.

    Args:
        tokenizer: the family's tokenizer; it is not changed.
        control: the added tokens, by text, that only trusted text may contain.
        slot_like: the control token that an image slot resembles in its treatment of white space.
    """

    def __init__(
        self, tokenizer: Tokenizer, control: Collection[str], slot_like: str | None = None
    ) -> None:
        self._tokenizer = _copy(tokenizer)
        added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
        chosen = [added[text] for text in sorted(set(control), key=len, reverse=True)]
        self._tokenizer.add_special_tokens(
            [_like(token, token.content, special=True) for token in chosen]
        )
        self._tokenizer.encode_special_tokens = True  # encodes them as ordinary text
        secret = secrets.token_hex(16)
        self._twins = {t.content: f"\ufdd0{secret}{i}\ufdd1" for i, t in enumerate(chosen)}
        self._slot, self._cut = f"\ufdd0{secret}slot\ufdd1", f"\ufdd0{secret}cut\ufdd1"
        twins = [_like(token, self._twins[token.content]) for token in chosen]
        slot = added[slot_like] if slot_like in added else AddedToken("")
        twins += [_like(slot, self._slot), _like(AddedToken(""), self._cut)]
        self._tokenizer.add_tokens(twins)
        self._pattern = re.compile("|".join(re.escape(t.content) for t in chosen) or "(?!)")
        self._ids = {token.content: self._id(token.content) for token in chosen}
        self._control_ids = frozenset(self._ids.values())
        self._real_ids = {self._id(twin): self._ids[text] for text, twin in self._twins.items()}
        self._real_ids[self._id(self._slot)] = SLOT
        self._cut_id = self._id(self._cut)
        self._with_twins = _cached(4096, self._replace)
        self._plain_ids = _cached(1024, self._encode_between)

    def encode(
        self, segments: Iterable[Segment | None], *, adds_special: bool = False
    ) -> list[int]:
        """Return the token ids of a prompt, with ``SLOT`` for each image.

        Args:
            segments: runs of text, and None for each image.
            adds_special: whether to add the tokenizer's own tokens around a text, such as the
                begin-of-sequence token.
        """
        parts = []
        for segment in segments:
            if segment is None:
                parts.append(self._slot)
            else:
                text = segment.text
                parts.append(_valid(text) if segment.is_client else self._with_twins(text))
        return self._encode("".join(parts), adds_special)

    def expand(self, text: str) -> Expansion | None:
        """Return the tokens of a trusted text from its first control token to its last.

        Return None if the text has no control token.
        """
        found = list(self._pattern.finditer(text))
        if not found:
            return None
        first, last = found[0].start(), found[-1].end()
        token_ids: list[int] = []
        end = first
        for match in found:
            if match.start() > end:
                token_ids += self._plain_ids(text[end : match.start()])
            token_ids.append(self._ids[match[0]])
            end = match.end()
        return Expansion(text[:first], tuple(token_ids), text[last:])

    def _encode(self, text: str, adds_special: bool) -> list[int]:
        for _ in range(MAX_PASSES):
            encoding = self._encoding(text, adds_special)
            token_ids: list[int] = encoding.ids
            if self._control_ids.isdisjoint(token_ids):
                break
            if not (cuts := self._leaks(encoding, token_ids)):
                break
            # A vocabulary may also have a control token as an ordinary word; split that word.
            pieces = pairwise((0, *cuts, len(text)))
            text = self._cut.join(text[start:stop] for start, stop in pieces)
        else:
            raise RequestError("the text holds too many control tokens", param="messages")
        real = self._real_ids
        return [real.get(i, i) for i in token_ids if i != self._cut_id]

    def _encoding(self, text: str, adds_special: bool) -> Any:
        """Encode a text; a long one as a batch of one, which lets other threads run meanwhile."""
        if len(text) < LONG_CHARS:
            return self._tokenizer.encode(text, add_special_tokens=adds_special)
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=adds_special)
        return encoding

    def _leaks(self, encoding: Any, token_ids: list[int]) -> list[int]:
        """Return where to split control tokens that ordinary text has produced."""
        added, control = encoding.special_tokens_mask, self._control_ids
        found = [n for n, i in enumerate(token_ids) if i in control and not added[n]]
        offsets = encoding.offsets if found else []
        return [offsets[number][0] + 1 for number in found]

    def _encode_between(self, text: str) -> list[int]:
        """Return the ids of ordinary text between two control tokens."""
        return self._encode(f"{self._cut}{text}{self._cut}", adds_special=False)

    def _replace(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._twins[match[0]], text)

    def _id(self, text: str) -> int:
        token_id = self._tokenizer.token_to_id(text)
        if token_id is None:
            raise KeyError(text)
        return token_id


def _cached(num: int, read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a function with an LRU cache of ``num`` short texts; long texts bypass it."""
    cached = lru_cache(num)(read)
    return lambda text: cached(text) if len(text) <= CACHED_CHARS else read(text)


def _copy(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with added tokens of its own, which neither pads nor truncates.

    It shares the vocabulary, which is large.
    """
    copy = Tokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (value := getattr(tokenizer, part)) is not None:
            setattr(copy, part, value)
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    copy.add_tokens([token for _, token in added])
    return copy


def _like(token: AddedToken, content: str, *, special: bool = False) -> AddedToken:
    """Return an added token with another spelling and the same behaviour."""
    return AddedToken(
        content,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
        normalized=token.normalized if special else False,
        special=special,
    )


def _valid(text: str) -> str:
    """Return text that UTF-8 can encode: a lone surrogate becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
