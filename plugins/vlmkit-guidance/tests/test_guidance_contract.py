"""llguidance keeps the contract."""

from vlmkit_guidance.compiler import GuidanceCompiler
from vlmkit_testing import ConstraintContract


class TestGuidanceCompiler(ConstraintContract):
    def make(self, vocabulary):
        return GuidanceCompiler(vocabulary)
