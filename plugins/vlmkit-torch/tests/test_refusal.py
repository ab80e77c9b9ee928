"""Unsupported checkpoints are refused with a reason, before or while they load."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from vlmkit.errors import CheckpointError, ConfigError, PluginUnavailable, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import hint_of
from vlmkit.plugins.loader import load as load_plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.loading import reading, weights
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.support import quantization, refusal

pytestmark = pytest.mark.torch

TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


EMPTY = (2).to_bytes(8, "little") + b"{}"  # a valid file without weights


def checkpoint(folder: Path, config: dict[str, Any], *, weights: bool = True) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(config))
    if weights:
        (folder / "model.safetensors").write_bytes(EMPTY)
    return Checkpoint("m", folder)


def saved_model(folder: Path, config: Any) -> Checkpoint:
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return Checkpoint("m", folder)


def build(made: Checkpoint, **settings: Any) -> Any:
    return torch_engine.build(
        BuildContext("", made, EngineSettings(cache_tokens=64, **settings), {})
    )


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "config.json names no 'model_type'"),
        ({"model_type": "no_such"}, "'no_such' is not one that the installed transformers defines"),
        ({"model_type": "no_such", "auto_map": {}}, "code in the checkpoint, which is never run"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder models"),
        ({"model_type": "idefics", "cross_layer_interval": 4}, "cross-attention to image feat"),
        ({"model_type": "evolla", "text_config": {"cross_attention_layers": [3]}}, "cross-att"),
        ({"model_type": "bert", "add_cross_attention": True}, "cross-attention is not supported"),
        ({"model_type": "jamba"}, "layers of Mamba 1"),
        (
            {"model_type": "glm_moe_dsa", "layer_types": ["indexed_attention"]},
            "'indexed_attention'",
        ),
        ({"model_type": "deepseek_v32", "index_topk": 2048}, "sparse attention"),
        ({"model_type": "florence2", "is_encoder_decoder": True}, "encoder-decoder models"),
        ({"model_type": "instructblip"}, "features of a picture that depend on the question"),
        ({"model_type": "kosmos-2"}, "features of a picture that a decoder itself puts among"),
        ({"model_type": "mamba2"}, "decoders of Mamba layers alone"),
        ({"model_type": "diffllama", "lambda_std_dev": 0.1}, "differential attention"),
        ({"model_type": "bloom"}, "attention in code of its own, which paged attention cannot"),
        ({"model_type": "llava", "text_config": {"model_type": "mpt"}}, "'mpt' computes attention"),
        ({"model_type": "xlm-roberta"}, "counted from the id of the padding token"),
        ({"model_type": "git"}, "features of a picture that a decoder itself puts among"),
        ({"model_type": "blip"}, "looks at a picture by cross-attention are not supported"),
        ({"model_type": "chameleon"}, "questions behind which a processor writes a token"),
        ({"model_type": "diffusion_gemma"}, "models of diffusion"),
        ({"model_type": "pi0"}, "models of actions"),
        ({"model_type": "pp_chart2table"}, "a template alone writes"),
        ({"model_type": "shieldgemma2"}, "models that judge a picture"),
    ],
)
def test_a_config_that_cannot_be_run_gives_its_reason(
    config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    assert reason in str(refusal.engine_cannot_serve(checkpoint(tmp_path, config)))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            lambda: transformers.MiniMaxM3VLConfig(
                text_config={
                    "num_hidden_layers": 2,
                    "sparse_attention_config": {"sparse_attention_freq": [0, 1]},
                }
            ),
            "'minimax_m3_sparse' (sparse attention with an indexer) is not supported",
        ),
        (transformers.UnlimitedOcrConfig, "a window over an answer, and none over its prompt"),
        (transformers.Inkling2Config, "convolutions beside attention with a window"),
    ],
)
def test_unsupported_layers_of_a_familys_defaults_are_refused_early(
    config: Callable[[], Any], reason: str, tmp_path: Path
) -> None:
    made = checkpoint(tmp_path, {"model_type": config().model_type})

    with pytest.raises(CheckpointError) as caught:
        reading.auto_class(made, config())
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "fast_vlm", "vision_config": {"model_type": "timm_wrapper"}},
        {"model_type": "perception_lm"},
        {"model_type": "gemma3n", "vision_config": {"model_type": "gemma3n_vision"}},
    ],
)
def test_the_refusal_of_a_timm_tower_names_the_missing_packages(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, has = checkpoint(tmp_path, config), {"timm"}
    monkeypatch.setattr(quantization, "is_installed", has.__contains__)

    reason = refusal.engine_cannot_serve(made)
    assert "one of timm, which needs torchvision, and torchvision must be installed" in str(reason)
    has.clear()
    assert "timm and torchvision must be installed" in str(refusal.encoder_cannot_serve(made))
    has |= {"timm", "torchvision"}
    assert refusal.engine_cannot_serve(made) is None


def test_random_features_are_refused_but_the_text_model_is_not(tmp_path: Path) -> None:
    tower = {"tokenize_function": "gumbel_argmax"}
    made = checkpoint(tmp_path, {"model_type": "ovis2", "vision_config": tower})
    reason = refusal.encoder_cannot_serve(made)
    assert "(vision_config.tokenize_function is 'gumbel_argmax') are not supported" in str(reason)
    assert hint_of(reason) == 'media_encoder.use = "none" serves its text'
    assert refusal.engine_cannot_serve(made) is None

    tower["tokenize_function"] = "softmax"
    steady = checkpoint(tmp_path, {"model_type": "ovis2", "vision_config": tower})
    assert refusal.encoder_cannot_serve(steady) is None


def test_a_checkpoint_without_safetensors_is_refused(tmp_path: Path) -> None:
    made = checkpoint(tmp_path, {"model_type": "llama"}, weights=False)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")

    assert "its weights are a pickle" in str(refusal.engine_cannot_serve(made))


@pytest.mark.parametrize("model_type", ["llama", "mistral4"])
def test_a_text_model_has_no_vision_encoder(model_type: str, tmp_path: Path) -> None:
    reason = refusal.encoder_cannot_serve(checkpoint(tmp_path, {"model_type": model_type}))

    assert reason == "the checkpoint has no vision encoder (no 'vision_config' in config.json)"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama"},
        {"model_type": "mllama", "text_config": {"cross_attention_layers": [3]}},
        {"model_type": "llava", "text_config": {"model_type": "../bloom/modeling_bloom"}},
        {"model_type": "llava", "text_config": {"model_type": ["bloom"]}},
        {"model_type": "llava", "text_config": {"model_type": "bloom" * 1000}},
    ],
)
def test_supported_checkpoints_are_not_refused(config: dict[str, Any], tmp_path: Path) -> None:
    assert refusal.engine_cannot_serve(checkpoint(tmp_path, config)) is None


def test_a_head_named_decoder_is_not_treated_as_one(tmp_path: Path) -> None:
    made = transformers.ModernBertDecoderConfig(**TINY, local_attention=16)

    assert build(saved_model(tmp_path, made)).limits.vocab_size == TINY["vocab_size"]


def test_the_registry_shows_the_reason_of_a_refusal(tmp_path: Path) -> None:
    made = checkpoint(tmp_path, {"model_type": "no_such"})

    with pytest.raises(PluginUnavailable, match=r"engine 'torch' .* cannot be used: model type"):
        load_plugins().engines.choose("torch", made)


def test_registering_imports_no_heavy_library() -> None:
    code = (
        "import sys; from vlmkit.plugins.loader import load; p = load();"
        "p.engines.get('torch').why_not();"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            lambda: transformers.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=1),
            "has recurrent layers alone here; decoders without attention are not supported",
        ),
        (
            lambda: transformers.NemotronHConfig(
                **{key: TINY[key] for key in TINY if key != "num_hidden_layers"},
                mamba_num_heads=4,
                mamba_head_dim=16,
                ssm_state_size=16,
                n_groups=2,
                layers_block_type=["linear_attention", "mlp"],
            ),
            "has recurrent layers alone here; decoders without attention are not supported",
        ),
        (
            lambda: transformers.JambaConfig(
                **TINY,
                attn_layer_period=2,
                attn_layer_offset=1,
                num_experts=2,
                mamba_d_state=4,
                mamba_dt_rank=4,
                use_mamba_kernels=False,
                initializer_range=0.15,
            ),
            "differs from the plain one",  # its chunks do not continue each other
        ),
        (
            lambda: transformers.BloomConfig(vocab_size=96, hidden_size=32, n_layer=1, n_head=2),
            "computes attention in code of its own",
        ),
        (
            lambda: transformers.CodeGenConfig(
                vocab_size=96, n_embd=32, n_layer=1, n_head=2, rotary_dim=8
            ),
            r"'codegen' is built in a way that this engine does not know: \w+Error",
        ),
        (
            lambda: transformers.T5Config(
                vocab_size=96, d_model=32, d_ff=48, num_layers=1, num_heads=2, d_kv=16
            ),
            "encoder-decoder",
        ),
    ],
    ids=["mamba", "nemotron_h", "jamba", "bloom", "codegen", "t5"],
)
def test_a_model_that_would_be_computed_wrongly_is_refused_at_load(
    config: Callable[[], Any], reason: str, tmp_path: Path
) -> None:
    made = config()
    auto = transformers.AutoModelForCausalLM
    if made.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    auto.from_config(made).save_pretrained(tmp_path)

    with pytest.raises(CheckpointError, match=reason):
        build(Checkpoint("m", tmp_path))


def test_a_checkpoint_with_a_missing_weight_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    made = saved_model(tmp_path, transformers.LlamaConfig(**TINY))
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(CheckpointError, match=r"lacks 1 weights, such as .*q_proj"):
        build(made)


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", 2**20), ("intermediate_size", 2**24), ("num_hidden_layers", 1000)],
)
def test_the_config_of_a_larger_model_is_refused_before_allocation(
    tmp_path: Path, field: str, value: int
) -> None:
    made = saved_model(tmp_path, transformers.LlamaConfig(**TINY))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))

    with pytest.raises(
        CheckpointError, match=r"config\.json of model 'm' is of a model of [\d,]+ w"
    ):
        build(made)


def test_a_field_that_transformers_refuses_is_named(tmp_path: Path) -> None:
    made = saved_model(tmp_path, transformers.LlamaConfig(**TINY))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": "x"}))

    with pytest.raises(CheckpointError, match=r"can read: its field 'intermediate_size' is wrong"):
        build(made)


def test_a_broken_weight_file_is_refused_without_library_messages(tmp_path: Path) -> None:
    made = saved_model(tmp_path, transformers.LlamaConfig(**TINY))
    (tmp_path / "model.safetensors").write_bytes(b"not a weight file")

    with pytest.raises(PluginUnavailable) as caught:
        load_plugins().engines.choose("torch", made)
    assert str(caught.value).endswith("'model.safetensors' is not a safetensors file")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "tpu"}, "must be auto, cpu, mps, cuda or cuda:N"),
        ({"device": "cuda:99"}, "is requested, but there"),
        ({"block_tokens": 64}, "the cache has room for 64 tokens, and 128 are the least"),
    ],
)
def test_a_setting_that_cannot_be_met_is_refused(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    made = saved_model(tmp_path, transformers.LlamaConfig(**TINY))

    with pytest.raises(ConfigError, match=words):
        build(made, **settings)


def examined(folder: Path, config: dict[str, Any], **settings: Any) -> str:
    context = BuildContext("", checkpoint(folder, config), EngineSettings(**settings), {})
    return weights.examine(context)


def test_device_and_precision_are_known_before_weights_are_read(tmp_path: Path) -> None:
    config = {"model_type": "llama", "dtype": "bfloat16", **TINY}
    assert examined(tmp_path, config, device="cpu") == "float32, cpu"
    assert examined(tmp_path, config, device="cpu", dtype="float16") == "float16, cpu"
    context = BuildContext("", checkpoint(tmp_path, config), EncoderSettings(dtype="float16"), {})
    assert weights.examine_encoder(context) == weights.examine(context)
    open_context = replace(context, settings=EncoderSettings())
    expected = f"with the engine's copy, or {weights.examine(open_context)}"
    assert weights.examine_encoder(open_context) == expected


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({"model_type": "llama", **TINY}, {"device": "cuda:99"}, "device 'cuda:99' is requested"),
        ({"model_type": "vit"}, {}, "of type 'vit' generates no text"),
        ({"model_type": "llama", "hidden_size": "x"}, {}, "is not one that transformers can read"),
    ],
)
def test_errors_of_a_config_are_found_without_weights(
    config: dict[str, Any], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(VlmkitError, match=message):
        examined(tmp_path, config, **settings)


def test_an_unknown_tensor_argument_of_attention_is_refused() -> None:
    from vlmkit_torch.attention import paged

    row = torch.zeros(1, 1, 1, 4)
    with pytest.raises(CheckpointError, match="needs 'position_bias', not supported"):
        paged.attend(torch.nn.Module(), row, row, row, None, position_bias=row)
    with pytest.raises(CheckpointError, match="attention mask of its own"):
        paged.attend(torch.nn.Module(), row, row, row, row)
