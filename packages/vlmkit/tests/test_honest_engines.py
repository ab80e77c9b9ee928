"""Engines that differ in what they claim keep the same contract, as they are."""

from broken.engine_subjects import OnAttention
from honest.engine import AttentionEngine, PlainEngine

from vlmkit.seams.engine import Engine


class TestAnEngineThatClaimsEverything(OnAttention):
    __init__ = object.__init__

    def make(self) -> Engine:
        return AttentionEngine()


class TestAnEngineWithAtomicImages(TestAnEngineThatClaimsEverything):
    def make(self) -> Engine:
        made = AttentionEngine()
        made.images_are_atomic = True
        return made


class TestAnEngineWithoutPrefixSharing(TestAnEngineThatClaimsEverything):
    def make(self) -> Engine:
        return PlainEngine()
