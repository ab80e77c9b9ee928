"""llguidance keeps the contract."""

from vlmkit_testing import ConstraintContract
from vlmkit_guidance.compiler import GuidanceCompiler


class TestGuidanceCompiler(ConstraintContract):
    def make(self, vocabulary):
        return GuidanceCompiler(vocabulary)
