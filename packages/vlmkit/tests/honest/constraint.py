"""A compiler that allows the usual tokens alone where only one text can follow, as it may."""

import numpy as np
from spelling import Spelling, SpellingCompiler


class UsualTokens(Spelling):
    def fill(self, mask):
        if len(self.rests[-1]) > 1:
            super().fill(mask)
        elif rest := self.rests[-1][0]:
            token_id = 1 + rest[0]
            mask[token_id // 32] |= np.uint32(1 << token_id % 32).astype(np.int32)


class UsualTokensCompiler(SpellingCompiler):
    matcher = UsualTokens
