"""An engine with keys and values of 8 bits: its capacity, its answers and what it refuses."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import vlmkit
from parity import hybrid, runner
from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.interfaces.memory_plan import PlannedLoad
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch import memory_plan, plugin
from vlmkit_torch.cache.kv_cache import Int8Pools
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.self_checks import vision_check
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]
HEAD = 16  # of the families of the zoo


def engine_of(folder: Path, **settings: Any) -> Any:
    own = EngineSettings(**{"block_tokens": 4, "max_chunk_tokens": 64, **settings})
    return torch_engine.build(BuildContext("", Checkpoint("m", folder), own, {}))


def tensors_of(engine: Any) -> list[torch.Tensor]:
    """Return what an engine's cache holds of all layers."""
    pools = engine._context.cache._pools.values()
    return [each for layer in pools for each in layer if isinstance(each, torch.Tensor)]


def test_it_holds_nearly_twice_the_tokens_of_half_precision_in_equal_memory(
    tmp_path: Path,
) -> None:
    config = transformers.LlamaConfig(**hybrid.SIZES, head_dim=128)
    folder = runner.save_random(config, tmp_path / "m")
    sizes = {"dtype": "bfloat16", "cache_gib": 0.01}
    dense, int8 = (engine_of(folder, cache_dtype=name, **sizes) for name in ("auto", "int8"))

    assert int8.limits.capacity_tokens >= 1.9 * dense.limits.capacity_tokens
    for engine in (dense, int8):
        num_bytes = sum(each.nbytes for each in tensors_of(engine))
        num_slots = engine.limits.capacity_tokens + 8  # and a block of zeros, and of padding
        assert num_bytes == num_slots * engine.needs.token_bytes
        assert engine.needs.token_bytes * engine.limits.capacity_tokens <= 0.01 * 2**30


def test_its_precision_and_memory_are_stated_by_limits_plan_and_doctor(
    saved: Saved, load: Callable[..., Any]
) -> None:
    engine, _ = load("llava", cache_dtype="int8")
    settings = EngineSettings(
        cache_tokens=800, block_tokens=4, max_chunk_tokens=64, cache_dtype="int8", device="cpu"
    )
    context = BuildContext("", Checkpoint("llava", saved("llava")), settings, {})
    plan = memory_plan.plan_engine(context, PlannedLoad(context_tokens=100, num_sequences=3))

    assert engine.limits.precision == "float32, int8 cache"
    assert plan.limits == engine.limits, "the precision is part of both"
    [cache] = [need for need in plan.needs if need.name == "KV cache"]
    assert cache.num_bytes == 300 * engine.needs.token_bytes
    assert cache.detail.startswith("int8, ")
    assert "8-bit KV cache" in plugin._examine_engine(context)


FAMILIES = ["llama", "gemma2", "llava", "qwen3_vl", "gemma3", "mllama", "deepseek", "lfm2"]


@pytest.fixture
def prompt_of(saved: Saved, tmp_path: Path) -> Callable[[str], tuple[Path, Prompt]]:
    """Return a function that gives the folder of a family and a prompt, with images if possible."""

    def give(name: str) -> tuple[Path, Prompt]:
        if name == "lfm2":
            return hybrid.save(name, tmp_path / name), hybrid.prompts()[0]
        if name == "deepseek":
            return runner.save_random(latent_attention(), tmp_path / name), hybrid.prompts()[0]
        folder = saved(name)
        return folder, runner.prompts(name, runner.config_of(folder))[0]

    return give


def latent_attention() -> Any:
    """Return a configuration whose keys and values are expanded from a latent vector."""
    return transformers.DeepseekV3Config(
        **{**hybrid.SIZES, "num_key_value_heads": 4},
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        first_k_dense_replace=4,
    )


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_depend_neither_on_chunks_nor_on_cached_prefixes(
    prompt_of: Callable[[str], tuple[Path, Prompt]], name: str
) -> None:
    folder, prompt = prompt_of(name)
    hosts = []
    for cache_dtype in ("auto", "int8"):
        engine = engine_of(folder, cache_tokens=800, cache_dtype=cache_dtype)
        encoder = torch_encoder(folder) if prompt.media else None
        hosts.append(EngineHost(engine, features_by(encoder)))
    host = hosts[1]
    exact, whole = (each.last_logits(prompt, (30, 31)) for each in hosts)
    assert np.abs(exact - whole).max() > 1e-4, "an effect of the chunks would show"
    assert isinstance(next(iter(host.engine._context.cache._pools.values())), Int8Pools)

    for chunk_tokens in (1, 3, 7):
        found = host.last_logits(prompt, (30, 31), chunk_tokens=chunk_tokens)
        np.testing.assert_allclose(found, whole, atol=1e-6)
    if not host.engine.limits.prefix_block_tokens:
        return
    for num_cached in (0, (len(prompt) + 1) // 4 * 4):
        sequence = host.sequence(prompt, (30, 31), scope=b"same")
        assert host.admit(sequence) == num_cached
        np.testing.assert_allclose(host.prefill(sequence), whole, atol=1e-6)
        host.engine.release(sequence)


def torch_encoder(folder: Path) -> Any:
    from vlmkit_torch.settings import EncoderSettings
    from vlmkit_torch.vision import encoder

    return encoder.build(BuildContext("", Checkpoint("m", folder), EncoderSettings(), {}))


def features_by(encoder: Any) -> Callable[[Prompt], dict[int, Any]]:
    return lambda prompt: dict(enumerate(encoder.encode(prompt.media))) if prompt.media else {}


def test_images_are_checked_at_load_with_the_precision_of_the_model(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, saved: Saved
) -> None:
    engine, encoder = load("llava", cache_dtype="int8")
    asked = runner.prompts("llava", runner.config_of(saved("llava")))
    host = EngineHost(engine, features_by(encoder))
    before = host.last_logits(asked[0])
    engine.try_media([asked[0], asked[3]], encoder)
    np.testing.assert_array_equal(host.last_logits(asked[0]), before)

    monkeypatch.setattr(vision_check, "_tolerance", lambda *_: -1.0)
    monkeypatch.setattr(vision_check, "NOISE", -1.0)
    with pytest.raises(CheckpointError, match="differs from the family's own code"):
        engine.try_media([asked[0]], encoder)
    np.testing.assert_array_equal(host.last_logits(asked[0]), before)


def with_outliers(folder: Path, to: Path, factor: float) -> Path:
    """Copy a checkpoint; two numbers of each key grow and those of queries shrink, or conversely.

    Scores stay the same: the two are rotated together.
    """
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    for name, weight in tensors.items():
        if name.endswith(("k_proj.weight", "q_proj.weight")):
            heads = weight.view(-1, HEAD, weight.shape[1])
            heads[:, [0, HEAD // 2]] *= factor if "k_proj" in name else 1 / factor
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_a_model_whose_keys_8_bits_cannot_hold_is_refused_at_load(
    saved: Saved, tmp_path: Path
) -> None:
    folder = with_outliers(saved("llama"), tmp_path / "m", 1000.0)
    engine_of(folder, cache_tokens=800).close()
    with pytest.raises(CheckpointError, match="changes all logits of this model") as error:
        engine_of(folder, cache_tokens=800, cache_dtype="int8")
    assert 'engine.cache_dtype = "auto"' in str(error.value.hint)
    engine_of(folder, cache_tokens=800, cache_dtype="int8", self_check=False).close()


def test_other_precisions_of_the_cache_are_refused_by_name(saved: Saved) -> None:
    with pytest.raises(ConfigError, match="cache_dtype"):
        vlmkit.load(saved("llama"), engine={"use": "torch", "cache_dtype": "int4"})


def test_the_engine_of_onnx_does_not_take_the_setting(saved: Saved) -> None:
    pytest.importorskip("vlmkit_onnx")
    with pytest.raises(ConfigError, match="cache_dtype"):
        vlmkit.load(saved("llama"), engine={"use": "onnx", "cache_dtype": "int8"})


def test_a_sequence_with_values_that_are_not_finite_shares_no_prefix(
    load: Callable[..., Any], saved: Saved
) -> None:
    engine, encoder = load("llava", cache_tokens=64, block_tokens=16, cache_dtype="int8")
    text = Prompt(tuple(range(40, 70)))
    asked = runner.prompts("llava", runner.config_of(saved("llava")))[0]
    host = EngineHost(engine, features_by(encoder))
    expected = host.last_logits(text)
    sick = host.sequence(asked)
    features = sick.features[0]
    nothing = torch.full_like(features.embeddings, torch.nan)
    sick.features[0] = replace(features, embeddings=nothing)
    host.admit(sick)
    assert not np.isfinite(host.prefill(sick)).all()
    engine.release(sick)

    np.testing.assert_array_equal(host.last_logits(text), expected)
    assert host.admit(host.sequence(asked, scope=sick.scope)) == 0, "nothing of it is shared"
