"""Answers in random batches equal those alone, through the whole pipeline.

Requests with images, constraints, drafts and seeds start, stop and are preempted at random; see
:mod:`parity.test_random_steps`.
"""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vlmkit_guidance")

from parity import test_random_steps as random_steps

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("family", ["smolvlm", "qwen3_vl"])
@pytest.mark.parametrize(
    "num_steps", [150, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(0)])]
)
def test_answers_of_random_batches_equal_those_alone(
    family: str, num_steps: int, parts: Callable[[str], Any]
) -> None:
    made = parts(family)

    def build(tokens: int) -> random_steps.Parts:
        longest = random_steps.MAX_SEQUENCE_TOKENS
        engine = made.engine(cache_tokens=tokens, max_sequence_tokens=longest)
        return engine, made.encoder(), made.tokenizer

    random_steps.test_answers_of_random_batches_equal_those_alone(build, num_steps)
