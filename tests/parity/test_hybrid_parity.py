"""Families with recurrent layers answer as ``generate`` does, in chunks, mixed and preempted."""

from pathlib import Path

import pytest
import torch
import transformers

from parity import hybrid, runner
from vlmkit.checkpoint import Checkpoint
from vlmkit.registry import BuildContext
from vlmkit_torch import engine
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch


def expected(folder: Path) -> list[runner.Answer]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    answers = []
    for prompt in hybrid.prompts():
        ids = torch.tensor([prompt.token_ids])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=runner.NUM_NEW,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        token_ids = made.sequences[0, len(prompt) :].tolist()
        answers.append(runner.Answer(token_ids, torch.cat(made.logits).float()))
    return answers


@pytest.mark.parametrize("name", hybrid.FAMILIES)
def test_a_family_with_recurrent_layers_is_answered_as_by_generate(
    name: str, tmp_path: Path
) -> None:
    folder = hybrid.save(name, tmp_path)
    for cache_tokens in (400, 84):  # the smaller one sends sequences away and takes them back
        settings = EngineSettings(cache_tokens=cache_tokens, block_tokens=4)
        made = engine.build(BuildContext("", Checkpoint(name, folder), settings, {}))
        outcome = runner.compare(runner.run(made, None, hybrid.prompts()), expected(folder))

        assert outcome.is_parity, outcome
        assert made.limits.prefix_block_tokens == 0
