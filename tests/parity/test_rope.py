"""Families whose RoPE changes with the length of a prompt: no sequence changes another."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from parity import hybrid, runner
from vlmkit.errors import CheckpointError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.model import positions
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

WINDOW, LONGEST = 32, 128  # tokens of the sequences that a model was first made for, and then
SIZES = {**hybrid.SIZES, "max_position_embeddings": LONGEST}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0, 1.5, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0],
    "original_max_position_embeddings": WINDOW,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES: dict[str, Callable[[], Any]] = {
    "phi3": lambda: transformers.Phi3Config(
        **SIZES, rope_parameters=LONGROPE, original_max_position_embeddings=WINDOW
    ),
    "phimoe": lambda: transformers.PhimoeConfig(
        **SIZES, **EXPERTS, rope_parameters={**LONGROPE, "short_mscale": 1.1, "long_mscale": 1.3}
    ),
    "llama": lambda: transformers.LlamaConfig(
        **{**SIZES, "max_position_embeddings": WINDOW}, rope_parameters=DYNAMIC
    ),
}
SHORT, LONG = (hybrid.prompts()[number] for number in (1, 3))  # of 5 tokens and of 60


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Give the checkpoint of each family in turn."""
    return save(request.param, tmp_path)


def save(name: str, folder: Path) -> Path:
    return runner.save_random(FAMILIES[name](), folder)


def load(folder: Path, **settings: Any) -> torch_engine.TorchEngine:
    tiny = EngineSettings(cache_tokens=400, block_tokens=4, **settings)
    return torch_engine.build(BuildContext("", Checkpoint("m", folder), tiny, {}))


def generated(folder: Path, prompt: Prompt) -> runner.Answer:
    return runner.continued(folder, [prompt])[0]


def test_a_long_neighbour_and_chunk_borders_change_no_answer(folder: Path) -> None:
    alone = [
        runner.run(load(folder, max_sequence_tokens=LONGEST), None, [prompt], step_tokens=64)[0]
        for prompt in (SHORT, LONG)
    ]
    made = load(folder, max_sequence_tokens=LONGEST)
    together = runner.compare(runner.run(made, None, [SHORT, LONG], step_tokens=13), alone)

    assert together.is_parity, together


def test_the_default_context_is_the_original_one_and_answers_as_generate(folder: Path) -> None:
    made = load(folder)
    assert made.limits.max_sequence_tokens == WINDOW

    prompts = [SHORT, Prompt(LONG.token_ids[: WINDOW - runner.NUM_NEW])]
    outcome = runner.compare(
        runner.run(made, None, prompts), [generated(folder, prompt) for prompt in prompts]
    )
    assert outcome.is_parity, outcome


@pytest.mark.parametrize("name", ["phi3", "phimoe"])
def test_a_prompt_beyond_the_original_context_is_answered_as_by_generate(
    name: str, tmp_path: Path
) -> None:
    folder = save(name, tmp_path)
    made = load(folder, max_sequence_tokens=LONGEST)
    outcome = runner.compare(runner.run(made, None, [LONG, SHORT])[:1], [generated(folder, LONG)])

    assert outcome.is_parity, outcome


def test_the_self_check_refuses_a_model_that_a_long_neighbour_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(positions, "fix_rotary_frequencies", lambda *_: None)

    with pytest.raises(CheckpointError, match="beside another sequence, differs from the plain"):
        load(folder, max_sequence_tokens=LONGEST)


def test_rope_parameters_of_each_layer_type_are_examined() -> None:
    config = transformers.Gemma3TextConfig(max_position_embeddings=LONGEST)
    config.rope_parameters = {"sliding_attention": {"rope_type": "default"}}
    assert positions.tokens_before_change(config) is None

    config.rope_parameters["full_attention"] = LONGROPE
    assert positions.tokens_before_change(config) == WINDOW
