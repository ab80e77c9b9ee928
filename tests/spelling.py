"""A constraint compiler without any library: it supports lists of alternative texts."""

import numpy as np

from vlmkit.errors import ConstraintError
from vlmkit.types.constraint import OneOf


class Spelling:
    """Follows one answer by the remaining parts of the texts that it may become."""

    def __init__(self, token_bytes, texts):
        self.token_bytes = token_bytes
        self.rests = [[text.encode() for text in texts]]

    @property
    def may_end(self):
        return b"" in self.rests[-1]

    def fill(self, mask):
        for token_id in range(len(self.token_bytes)):
            if self._after(token_id):
                mask[token_id // 32] |= np.uint32(1 << token_id % 32).astype(np.int32)

    def accept(self, token_id):
        after = self._after(token_id)
        if after:
            self.rests.append(after)
        return bool(after)

    def roll_back(self, num_tokens):
        del self.rests[len(self.rests) - num_tokens :]

    def reset(self):
        del self.rests[1:]

    def forced(self):
        """Return tokens while there is but one that may follow."""
        found = []
        while not self.may_end:
            able = [i for i in range(len(self.token_bytes)) if self._after(i)]
            if len(able) != 1:
                break
            found.append(able[0])
            self.accept(able[0])
        self.roll_back(len(found))
        return found

    def _after(self, token_id):
        if not 0 <= token_id < len(self.token_bytes):
            return []
        added = self.token_bytes[token_id]
        rests = self.rests[-1] if added else []
        return [rest[len(added) :] for rest in rests if rest.startswith(added)]


class SpellingCompiler:
    matcher = Spelling

    def __init__(self, vocabulary):
        self.token_bytes = vocabulary.token_bytes

    def compile(self, constraint):
        if not isinstance(constraint, OneOf):
            raise ConstraintError("only texts to choose from are taken")
        return lambda: self.matcher(self.token_bytes, constraint.texts)
