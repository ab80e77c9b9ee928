"""DRY's sequence breakers as tokens: which tokens contain one, or begin one that others complete.

They are found as in llama.cpp, over the whole vocabulary. A token that contains the text breaks
alone. A token that ends with the start of the text breaks where the usual tokens of the rest
follow.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence as Seq
from functools import lru_cache
from typing import Any

import numpy as np

from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.types.sampling import MAX_BREAKER_TOKENS

MAX_CACHED = 64  # texts

Tail = tuple[int, ...]
_Groups = tuple[tuple[Tail, Any], ...]


class TokenBreakers(Mapping[int, tuple[Tail, ...]]):
    """Maps each token that begins a breaker to the tails that complete it.

    The tail of a token that breaks alone is empty.

    Args:
        groups: each tail, with the sorted tokens ``[tokens]`` before it.
    """

    def __init__(self, groups: _Groups) -> None:
        self._groups = groups
        self._found: dict[int, tuple[Tail, ...]] = {}

    def __getitem__(self, token_id: int) -> tuple[Tail, ...]:
        if token_id not in self._found:
            tails = (tail for tail, ids in self._groups if _holds(ids, token_id))
            self._found[token_id] = tuple(dict.fromkeys(tails))
        if tails_found := self._found[token_id]:
            return tails_found
        raise KeyError(token_id)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({int(token_id) for _, ids in self._groups for token_id in ids}))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class SequenceBreakers:
    """Finds the breakers of requests in one model's vocabulary.

    Args:
        tokenizer: the tokenizer of the model.
        vocab_size: columns of the logits.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = min(vocab_size, tokenizer.vocab_size)
        self._lock = threading.Lock()
        self._bytes: Any = None  # of all tokens, concatenated
        self._ends: Any = None  # [tokens] where each ends
        self._sizes: Any = None
        self._found = lru_cache(MAX_CACHED)(self._find)

    def of(self, texts: Seq[str]) -> TokenBreakers:
        """Return the breakers of some texts; each new text takes milliseconds."""
        with self._lock:
            if self._bytes is None:
                self._read()
        return TokenBreakers(tuple(group for text in texts for group in self._found(text)))

    def _read(self) -> None:
        spelled = [self._tokenizer.token_bytes(token_id) for token_id in range(self._num_tokens)]
        self._sizes = np.array([len(each) for each in spelled], np.int64)
        self._ends = np.cumsum(self._sizes)
        self._bytes = np.frombuffer(b"".join(spelled), np.uint8)

    def _find(self, text: str) -> _Groups:
        encode, spelled = self._tokenizer.encode, text.encode()
        alone = self._holding(spelled)
        groups: dict[Tail, list[Any]] = defaultdict(list)
        groups[()].append(alone)
        usual = [*encode(text)]
        if len(usual) > 1:
            groups[tuple(usual[1 : 1 + MAX_BREAKER_TOKENS])].append(np.array(usual[:1]))
        for cut in range(1, len(text)):
            begun = text[:cut].encode()
            ids = np.setdiff1d(self._ending(begun), alone)
            if len(ids):
                groups[tuple(encode(text[cut:])[:MAX_BREAKER_TOKENS])].append(ids)
        return tuple((tail, np.unique(np.concatenate(ids))) for tail, ids in groups.items())

    def _holding(self, spelled: bytes) -> Any:
        """Return the tokens that contain some bytes."""
        positions = np.flatnonzero(self._bytes[: len(self._bytes) - len(spelled) + 1] == spelled[0])
        for number, byte in enumerate(spelled[1:], 1):
            positions = positions[self._bytes[positions + number] == byte]
        token_ids = np.searchsorted(self._ends, positions, side="right")
        return np.unique(token_ids[positions + len(spelled) <= self._ends[token_ids]])

    def _ending(self, spelled: bytes) -> Any:
        """Return the tokens that end with some bytes."""
        token_ids = np.flatnonzero(self._sizes >= len(spelled))
        for number, byte in enumerate(reversed(spelled), 1):
            token_ids = token_ids[self._bytes[self._ends[token_ids] - number] == byte]
        return token_ids


def _holds(ids: Any, token_id: int) -> bool:
    index = int(np.searchsorted(ids, token_id))
    return index < len(ids) and int(ids[index]) == token_id
