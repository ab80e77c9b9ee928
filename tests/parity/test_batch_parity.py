"""Every family and every RoPE type answers two prompts in a batch as it answers each alone.

One prompt is shorter, and one longer, than each length that changes a family's computation: a
sliding window, an attention section, the original context, or a chunk of a prompt.
"""

from collections.abc import Callable, Iterable, Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import transformers

import zoo
from parity import families, hybrid, runner
from vlmkit.errors import ConfigError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.export import exporter
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.model import positions
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]
SECTION, FIRST, LONGEST = 16, 32, 128  # tokens
SHORT, LONG = (hybrid.prompts()[number] for number in (1, 3))  # of 5 tokens and of 60
SIZES = {**hybrid.SIZES, "max_position_embeddings": LONGEST}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
BASE = {"rope_theta": 1e4}
STRETCHED = {**BASE, "factor": 4.0, "original_max_position_embeddings": FIRST}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 48,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
KINDS: dict[str, dict[str, Any]] = {
    "default": {**BASE},
    "linear": {**BASE, "factor": 4.0},
    "dynamic": {**BASE, "factor": 4.0},
    "yarn": STRETCHED,
    "longrope": {
        **STRETCHED,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0, 1.5, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0],
    },
    "llama3": {**STRETCHED, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "proportional": {**BASE, "partial_rotary_factor": 0.5},
}
"""Parameters of each kind of rotation, for heads of 16."""


def table(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, **KINDS[kind], **more}


def _llama(kind: str) -> Any:
    longest = FIRST if kind == "dynamic" else LONGEST  # it has no other word for its first context
    sizes = {**SIZES, "max_position_embeddings": longest}
    return transformers.LlamaConfig(**sizes, rope_parameters=table(kind))


def _gemma3(kind: str) -> Any:
    return transformers.Gemma3TextConfig(
        **{**SIZES, "max_position_embeddings": FIRST if kind == "dynamic" else LONGEST},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=FIRST,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={"sliding_attention": table("default"), "full_attention": table(kind)},
    )


MODELS: dict[str, Callable[[], Any]] = {
    **{f"llama, {kind}": lambda kind=kind: _llama(kind) for kind in KINDS},
    **{f"gemma3, {kind}": lambda kind=kind: _gemma3(kind) for kind in KINDS if kind != "default"},
    "phi3, longrope": lambda: transformers.Phi3Config(
        **SIZES, rope_parameters=table("longrope"), original_max_position_embeddings=FIRST
    ),
    "qwen2, yarn and a window": lambda: transformers.Qwen2Config(
        **SIZES,
        rope_parameters=table("yarn"),
        use_sliding_window=True,
        sliding_window=FIRST,
        max_window_layers=2,
    ),
    "gpt_oss, yarn and windows": lambda: transformers.GptOssConfig(
        **SIZES,
        **EXPERTS,
        head_dim=16,
        sliding_window=FIRST,
        rope_parameters=table("yarn", truncate=False),
    ),
    "deepseek_v3, yarn of a part": lambda: transformers.DeepseekV3Config(
        **{**SIZES, **LATENT}, rope_parameters=table("yarn", mscale=1.0, mscale_all_dim=0.8)
    ),
    "llama4_text, sections": lambda: transformers.Llama4TextConfig(
        **SIZES,
        head_dim=16,
        intermediate_size_mlp=96,
        **EXPERTS,
        attention_chunk_size=SECTION,
        floor_scale=FIRST,
        rope_parameters=table("llama3"),
    ),
    "cohere2, windows": lambda: transformers.Cohere2Config(**SIZES, sliding_window=FIRST),
    "ministral3, scaled queries": lambda: transformers.Ministral3Config(
        **SIZES,
        head_dim=16,
        rope_parameters=table("yarn", llama_4_scaling_beta=0.1, mscale=1.0, mscale_all_dim=1.0),
    ),
}
"""Families with each kind of rotation, and with others of what prompts are measured by."""


def alone_and_together(
    engine: Engine,
    encoder: MediaEncoder | None,
    prompts: Seq[Prompt],
    banned: Seq[int] = (),
) -> list[runner.Answer]:
    """Return the answer of each prompt alone; assert that the answers in a batch are equal."""
    alone = [
        runner.run(engine, encoder, [prompt], banned, step_tokens=LONGEST)[0] for prompt in prompts
    ]
    for order in (list(prompts), list(reversed(prompts))):
        wanted = alone if order[0] is prompts[0] else list(reversed(alone))
        for step_tokens in (13, LONGEST):
            found = runner.run(engine, encoder, order, banned, step_tokens=step_tokens)
            outcome = runner.compare(found, wanted)
            assert outcome.is_parity, (step_tokens, outcome)
    return alone


def pair(name: str, config: Any) -> list[Prompt]:
    """Return a text of five tokens and a longer prompt, with images for a vision family."""
    if name in zoo.NAMES_TEXT:
        return [SHORT, LONG]
    shown = runner.prompts(name, config)[2]
    return [shown if name == "paligemma" else SHORT, Prompt(shown.token_ids, shown.media)]


ALWAYS = {
    *("llama", "gpt_oss", "gemma3", "qwen2_5_vl", "paligemma", "llama4", "lfm2_vl", "kimi_k25"),
    *("llama, dynamic", "llama, longrope", "gemma3, yarn", "gemma3, proportional"),
    *("llama4_text, sections", "gpt_oss, yarn and windows", "ministral3, scaled queries"),
}
"""One of each mechanism, tried in every run; the others in slow ones."""


def sampled(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", sampled(zoo.NAMES))
def test_a_family_answers_in_a_batch_as_alone(name: str, saved: Saved) -> None:
    engine, encoder, config = runner.load_engine(
        name, saved(name), cache_tokens=1200, prefix_cache=False
    )
    alone_and_together(engine, encoder, pair(name, config), runner.banned_ids(config))


@pytest.mark.parametrize("name", sampled(families.EXPORTED))
def test_an_exported_family_answers_in_a_batch_as_alone(name: str, exported: Saved) -> None:
    engine, encoder, config = runner.load_onnx_engine(name, exported(name), prefix_cache=False)
    alone_and_together(engine, encoder, pair(name, config), runner.banned_ids(config))


@pytest.mark.parametrize("name", sampled(MODELS))
def test_a_rope_type_answers_in_a_batch_as_alone_and_as_generate(name: str, tmp_path: Path) -> None:
    folder = runner.save_random(MODELS[name](), tmp_path)
    settings = EngineSettings(
        cache_tokens=400, block_tokens=4, prefix_cache=False, max_sequence_tokens=LONGEST
    )
    made = torch_engine.build(BuildContext("", Checkpoint("m", folder), settings, {}))
    alone = alone_and_together(made, None, [SHORT, LONG])

    # Where frequencies change with length, they are those of long prompts, for short ones, too.
    if "dynamic" in name:
        return
    count = 1 if positions.tokens_before_change(runner.config_of(folder)) else 2
    wanted = runner.continued(folder, [SHORT, LONG][-count:])
    outcome = runner.compare(alone[-count:], wanted)
    assert outcome.is_parity, outcome


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_rope_type_answers_in_a_batch_as_alone_and_as_generate(
    name: str, tmp_path: Path
) -> None:
    folder = runner.save_random(MODELS[name](), tmp_path / "model")
    if name.startswith(("llama4", "deepseek", "ministral3")):
        pytest.skip("it is refused by the exporter")
    exporter.export(Checkpoint("m", folder), tmp_path / "onnx", "fp32", lambda _: None)
    made, _, _ = runner.load_onnx_engine("llama", tmp_path / "onnx", prefix_cache=False)
    limit = made.limits.max_sequence_tokens - runner.NUM_NEW
    prompts = [SHORT, Prompt(LONG.token_ids[:limit])]
    alone = alone_and_together(made, None, prompts)

    outcome = runner.compare(alone, runner.continued(folder, prompts))
    assert outcome.is_parity, outcome


PUBLISHED, FURTHER = 4096, 4200  # tokens of the first context of Phi-3, and of a prompt beyond it


def phi3_as_published(folder: Path) -> Path:
    """Save a small Phi-3 with the RoPE settings of the published ones."""
    half = KINDS["longrope"]
    config = transformers.Phi3Config(
        **{**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 131_072},
        original_max_position_embeddings=PUBLISHED,
        rope_scaling={"type": "longrope", **{k: half[k] for k in ("short_factor", "long_factor")}},
        rope_theta=1e4,
    )
    return runner.save_random(config, folder)


def long_prompt(num_tokens: int) -> Prompt:
    return Prompt(tuple(3 + number * 7 % 300 for number in range(num_tokens)))


def test_the_original_context_of_phi_3_ends_where_its_frequencies_change(
    tmp_path: Path,
) -> None:
    folder = phi3_as_published(tmp_path)
    sides = {PUBLISHED: [SHORT, long_prompt(PUBLISHED - 10)], FURTHER + 10: [long_prompt(FURTHER)]}

    for longest, prompts in sides.items():
        settings = EngineSettings(
            cache_tokens=2 * longest, prefix_cache=False, max_sequence_tokens=longest
        )
        made = torch_engine.build(BuildContext("", Checkpoint("m", folder), settings, {}))
        found = runner.run(made, None, prompts, step_tokens=1024)
        outcome = runner.compare(found, runner.continued(folder, prompts))
        assert outcome.is_parity, (longest, outcome)


@pytest.mark.slow
def test_exported_graphs_of_phi_3_serve_exactly_its_original_context(
    tmp_path: Path,
) -> None:
    folder = phi3_as_published(tmp_path / "model")
    exporter.export(Checkpoint("m", folder), tmp_path / "onnx", "fp32", lambda _: None)
    made, _, _ = runner.load_onnx_engine(
        "llama", tmp_path / "onnx", prefix_cache=False, cache_tokens=2 * PUBLISHED
    )
    assert made.limits.max_sequence_tokens == PUBLISHED

    prompts = [SHORT, long_prompt(PUBLISHED - runner.NUM_NEW)]
    alone = alone_and_together(made, None, prompts)
    outcome = runner.compare(alone, runner.continued(folder, prompts))
    assert outcome.is_parity, outcome

    with pytest.raises(ConfigError, match=f"is right for {PUBLISHED} tokens"):
        runner.load_onnx_engine("llama", tmp_path / "onnx", max_sequence_tokens=PUBLISHED + 1)
