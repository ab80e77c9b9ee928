"""The contract of constraint compilers, for llguidance."""

from vlmkit_guidance.compiler import GuidanceCompiler
from vlmkit_testing import ConstraintContract


class TestGuidanceCompiler(ConstraintContract):
    def make(self, vocabulary):
        return GuidanceCompiler(vocabulary)
