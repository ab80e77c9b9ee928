"""Families with recurrent layers answer as ``generate`` does, in chunks, mixed and preempted."""

from pathlib import Path

import pytest

from parity import hybrid, runner
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch


def expected(folder: Path) -> list[runner.Answer]:
    return runner.continued(folder, hybrid.prompts())


@pytest.mark.parametrize("name", hybrid.FAMILIES)
def test_a_family_with_recurrent_layers_is_answered_as_by_generate(
    name: str, tmp_path: Path
) -> None:
    folder = hybrid.save(name, tmp_path)
    for cache_tokens in (400, 84):  # the smaller one sends sequences away and takes them back
        settings = EngineSettings(cache_tokens=cache_tokens, block_tokens=4)
        made = torch_engine.build(BuildContext("", Checkpoint(name, folder), settings, {}))
        outcome = runner.compare(runner.run(made, None, hybrid.prompts()), expected(folder))

        assert outcome.is_parity, outcome
        assert made.limits.prefix_block_tokens == 0


def test_a_decoder_that_lies_inside_the_base_model_is_answered_as_by_generate(
    tmp_path: Path,
) -> None:
    folder = runner.save_random(hybrid.opt(), tmp_path)
    settings = EngineSettings(cache_tokens=400, block_tokens=4)
    made = torch_engine.build(BuildContext("", Checkpoint("opt", folder), settings, {}))
    outcome = runner.compare(runner.run(made, None, hybrid.prompts()), expected(folder))

    assert outcome.is_parity, outcome
