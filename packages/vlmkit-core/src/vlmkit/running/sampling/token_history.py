"""All tokens of a sequence as one array, drafts included."""

from typing import Any

import numpy as np

from vlmkit.interfaces.sampler import Row
from vlmkit.interfaces.sequence import Sequence


class TokenHistory:
    """An array that grows with a sequence; only new tokens are copied.

    Args:
        sequence: the sequence of the tokens.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._tokens = np.array(sequence.prompt.token_ids, dtype=np.int64)
        self._num_prompt = self._num_tokens = len(self._tokens)

    def at(self, row: Row) -> Any:
        """Return the tokens ``[tokens]`` int64 of a row: the next call may overwrite it."""
        own = row.sequence.output_ids
        num_tokens = self._num_prompt + len(own)
        stop = num_tokens + len(row.ahead)
        if stop > len(self._tokens):
            more = np.zeros(max(64, stop - len(self._tokens) + len(self._tokens) // 2), np.int64)
            self._tokens = np.concatenate([self._tokens, more])
        self._tokens[self._num_tokens : num_tokens] = own[self._num_tokens - self._num_prompt :]
        self._num_tokens = num_tokens
        self._tokens[num_tokens:stop] = row.ahead
        return self._tokens[:stop]
