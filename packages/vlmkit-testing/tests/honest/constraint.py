"""Compilers that allow only the usual tokens of a forced text, or support a single pattern."""

import numpy as np

from spelling import Spelling, SpellingCompiler
from vlmkit.errors import ConstraintError
from vlmkit.types.constraint import Regex

YEAR = Regex("[0-9]{4}")


class UsualTokens(Spelling):
    def fill(self, mask):
        if len(self.rests[-1]) > 1:
            super().fill(mask)
        elif rest := self.rests[-1][0]:
            token_id = 1 + rest[0]
            mask[token_id // 32] |= np.uint32(1 << token_id % 32).astype(np.int32)


class UsualTokensCompiler(SpellingCompiler):
    matcher = UsualTokens


class FourDigits:
    """Matches a year."""

    def __init__(self, token_bytes):
        self.token_bytes, self.said = token_bytes, [b""]

    @property
    def may_end(self):
        return len(self.said[-1]) == 4

    def fill(self, mask):
        for token_id in range(len(self.token_bytes)):
            if self.accept(token_id):
                self.roll_back(1)
                mask.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)

    def accept(self, token_id):
        known = 0 <= token_id < len(self.token_bytes)
        added = self.token_bytes[token_id] if known else b""
        if not added.isdigit() or len(self.said[-1] + added) > 4:
            return False
        self.said.append(self.said[-1] + added)
        return True

    def roll_back(self, num_tokens):
        del self.said[len(self.said) - num_tokens :]

    def forced(self):
        return ()


class YearCompiler:
    """Supports a single pattern."""

    def __init__(self, vocabulary):
        self.token_bytes = vocabulary.token_bytes

    def compile(self, constraint):
        if constraint != YEAR:
            raise ConstraintError("only years are kept to")
        return lambda: FourDigits(self.token_bytes)
