"""Engines with different claims pass the same contract unchanged."""

import dataclasses

import pytest
from broken.engine_subjects import OnAttention
from honest.engine import AttentionEngine, PlainEngine, truth
from honest.unusual_engines import HalfEngine, RecurrentEngine

from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Prompt


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


class TestAnEngineThatTakesOneSequence(TestAnEngineThatClaimsEverything):
    def make(self) -> Engine:
        made = AttentionEngine()
        made.limits = dataclasses.replace(made.limits, max_sequences=1)
        return made


class TestAnEngineOfOneSlotWithoutSharing(TestAnEngineThatClaimsEverything):
    def make(self) -> Engine:
        made = PlainEngine()
        made.limits = dataclasses.replace(made.limits, max_sequences=1)
        return made


class TestAnEngineWithAReferenceOfTokens(TestAnEngineThatClaimsEverything):
    def reference(self, prompt: Prompt) -> list[int]:
        """Return the next three tokens, each computed without a cache."""
        found: list[int] = []
        for _ in range(3):
            ids = (*prompt.token_ids, *found)
            found.append(int(truth(dataclasses.replace(prompt, token_ids=ids)).argmax()))
        return found


class TestAnEngineWithARecurrentState(TestAnEngineThatClaimsEverything):
    def make(self) -> Engine:
        return RecurrentEngine()

    def reference(self, prompt: Prompt) -> None:
        """There is none: no other code computes this model."""


@pytest.mark.slow
class TestAnEngineOfHalfPrecision(TestAnEngineThatClaimsEverything):
    atol = 0.05

    def make(self) -> Engine:
        return HalfEngine()
