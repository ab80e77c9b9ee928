"""Checkpoints of compressed-tensors, made by its own tool, and those that cannot run."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpoint_layouts.layout import Change, Layout, both, edit, read
from checkpoint_layouts.quantized import ENGINE, UNQUANTIZED
from checkpoint_layouts.weights import changed, tensors, write

Group = dict[str, Any]

TOKEN = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}
STATIC_FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
SCALE = 0.02  # of what is quantized by a fixed scale


def weights(num_bits: int, strategy: str = "channel", **more: Any) -> Group:
    sizes = {"group_size": 16} if strategy == "group" else {}
    return {"num_bits": num_bits, "strategy": strategy, "symmetric": True, **sizes, **more}


def group(stored: Group, **more: Any) -> Group:
    return {"targets": ["Linear"], "weights": stored, **more}


W4A16 = group(weights(4, "group"))
W8A16 = group(weights(8))
ASYMMETRIC = group(weights(4, "group", symmetric=False))
INT8 = group(weights(8), format="int-quantized")
INT8_ACTIVATIONS = group(weights(8), input_activations={**TOKEN, "type": "int"})
PACKED_ACTIVATIONS = {**W4A16, "input_activations": {**TOKEN, "type": "int"}}
FP8 = group(weights(8, "tensor", type="float"), input_activations=STATIC_FP8)
FP8_DYNAMIC = group(weights(8, type="float"), input_activations={**TOKEN, "type": "float"})
FP4 = group(weights(4, "group", type="float"), format="nvfp4-pack-quantized")
ATTENTION = {**W4A16, "targets": ["re:.*self_attn.*proj$"]}
REST = {**W8A16, "targets": ["re:.*mlp.*proj$"]}


def quantize(
    source: Path, folder: Path, groups: Mapping[str, Group], kind: Any, **stated: Any
) -> Path:
    """Quantize a checkpoint with the package, by the largest weight of each scale.

    Args:
        source: the checkpoint.
        folder: where the quantized one is written.
        groups: as ``config_groups`` has them.
        kind: the class of transformers that loads it.
        stated: more of the configuration.
    """
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    stated = {"config_groups": groups, "ignore": ["lm_head"]} | stated
    config = QuantizationConfig(**stated, quantization_status="initialized")
    model = kind.from_pretrained(source)
    apply_quantization_config(model, config, show_progress=False)
    _calibrate(model)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    shutil.copytree(source, folder)
    kept = (folder / "generation_config.json").read_text()
    model.save_pretrained(folder)
    compressor.update_config(folder)
    (folder / "generation_config.json").write_text(kept)
    _quantize_experts(folder, config)
    return folder


def _calibrate(model: Any) -> None:
    """Give each scale its value."""
    from compressed_tensors.quantization.utils import calculate_qparams

    for module in model.modules():
        for name in ("input_scale", "k_scale", "v_scale"):
            if hasattr(module, name):
                getattr(module, name).data.fill_(SCALE)
        if not hasattr(module, "weight_scale"):
            continue
        stored, rows = module.quantization_scheme.weights, module.weight.data
        rows = rows.reshape(*module.weight_scale.shape, -1)
        scale, zero = calculate_qparams(rows.amin(-1), rows.amax(-1), stored)
        module.weight_scale.data.copy_(scale)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data.copy_(zero)


def _quantize_experts(folder: Path, config: Any) -> None:
    """Quantize each expert, which transformers has in one weight, where the tool sees no layer."""
    import torch
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    stored: dict[str, Any] = {}
    for name, weight in tensors(folder).items():
        stored[name] = weight
        if ".experts." not in name:
            continue
        box = torch.nn.Sequential(torch.nn.Linear(*reversed(weight.shape), bias=False))
        box[0].weight.data = stored.pop(name)
        scheme = {**next(iter(config.config_groups.values())).model_dump(), "targets": ["Linear"]}
        alone = QuantizationConfig(config_groups={"group_0": scheme})
        apply_quantization_config(box, alone, show_progress=False)
        _calibrate(box)
        ModelCompressor.from_pretrained_model(box).compress_model(box)
        prefix = name.removesuffix("weight")
        stored |= {prefix + part.removeprefix("0."): it for part, it in box.state_dict().items()}
    write(folder, {name: weight.contiguous() for name, weight in stored.items()})


def state(folder: Path, **values: Any) -> None:
    """Set values of a folder's quantization config."""
    config = read(folder, "config.json")
    config["quantization_config"] |= values
    (folder / "config.json").write_text(json.dumps(config))


def _by(groups: Any, **more: Any) -> Change:
    stated = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return edit("config.json", quantization_config={**stated, "config_groups": groups, **more})


def _stored_as(*parts: str) -> Change:
    """Return a change that stores one expert's weight in parts."""

    def store(weights: dict[str, Any]) -> None:
        import torch

        name = next(name for name in sorted(weights) if ".experts." in name)
        weights.pop(name)
        for part in parts:
            weights[name.removesuffix("weight") + part] = torch.zeros(2, 2, dtype=torch.int8)

    return changed(store)


def with_weight(name: str) -> Change:
    """Return a change that adds a weight of eight bits."""

    def add(weights: dict[str, Any]) -> None:
        import torch

        weights[name] = torch.zeros(2, 2, dtype=torch.int8)

    return changed(add)


def _refused(name: str, change: Change, reason: str, base: str = "llama") -> Layout:
    return Layout(f"compressed: {name}", change, ENGINE + reason, UNQUANTIZED, base=base)


NOT = "which is not supported"
OTHERS = "so that answers would depend on other requests"
ROTATION = {"config_groups": {"R1": {"type": "hadamard"}}}
QUERIES = "model.layers.0.self_attn.q_proj.weight_packed"
INT8_OF_TOKENS, FP4_OF_TOKENS = ({**one, "input_activations": TOKEN} for one in (INT8, FP4))
DYNAMIC = {**TOKEN, "strategy": "tensor"}

LAYOUTS = [
    _refused(
        "sparse",
        _by({"group_0": INT8_ACTIVATIONS}, sparsity_config={"format": "sparse-24-bitmask"}),
        "its quantization has sparse weights ('sparsity_config'), which are not supported",
    ),
    _refused(
        "transforms",
        _by(
            {"group_0": INT8_ACTIVATIONS},
            transform_config=ROTATION,
        ),
        "its quantization has transforms of weights and activations ('transform_config'), which "
        "are not supported",
    ),
    _refused(
        "no groups",
        _by({}),
        "its quantization_config has no 'config_groups', which say how it is quantized",
    ),
    _refused(
        "an old format",
        _by({"group_0": W4A16}, format="marlin-24"),
        "its config group 'group_0' stores weights as 'marlin-24', not supported",
    ),
    _refused(
        "activations alone",
        _by({"group_0": {"targets": ["re:.*self_attn$"], "input_activations": STATIC_FP8}}),
        f"its config group 'group_0' quantizes no weights, {NOT}",
    ),
    _refused(
        "a scale of a whole step",
        _by({"group_0": {**INT8, "input_activations": DYNAMIC}}),
        "its config group 'group_0' computes the scale of activations for each 'tensor', " + OTHERS,
    ),
    _refused(
        "keys and values of a scale that is computed",
        _by({"group_0": W4A16}, kv_cache_scheme=DYNAMIC),
        f"its 'kv_cache_scheme' is dynamic, {OTHERS}",
    ),
    _refused(
        "asymmetric weights and quantized activations",
        _by({"group_0": {**ASYMMETRIC, "input_activations": TOKEN}}),
        "its config group 'group_0' has asymmetric packed weights, which are not supported with "
        "quantized activations",
    ),
    _refused(
        "plain weights",
        _by({"group_0": W4A16}),
        "its quantization_config describes quantized layers, and it has none",
    ),
    _refused(
        "plain weights and quantized activations",
        _by({"group_0": INT8_ACTIVATIONS}),
        "its quantization_config describes compressed weights, and its files have none",
    ),
    _refused(
        "an embedding",
        both(_by({"group_0": INT8_ACTIVATIONS}), with_weight("model.embed_tokens.weight_packed")),
        f"its embedding is quantized, {NOT}",
    ),
    _refused(
        "a head that is the embedding",
        both(
            _by({"group_0": INT8_ACTIVATIONS}),
            edit("config.json", tie_word_embeddings=True),
            with_weight("lm_head.weight_packed"),
        ),
        "its head is quantized and is its embedding ('tie_word_embeddings'), which is not "
        "supported",
    ),
    _refused(
        "plain experts",
        both(
            _by({"group_0": PACKED_ACTIVATIONS}),
            with_weight(QUERIES),
        ),
        "some of its experts are plain in its files and quantized by its config groups",
        "mixtral",
    ),
    _refused(
        "experts of eight bits",
        both(
            _by({"group_0": INT8_OF_TOKENS}),
            _stored_as("weight", "weight_scale"),
        ),
        f"its experts are 'int-quantized' by 'channel', {NOT}",
        "mixtral",
    ),
    _refused(
        "experts of four bits that are floats",
        both(
            _by({"group_0": FP4_OF_TOKENS}),
            _stored_as("weight_packed", "weight_scale"),
        ),
        f"its experts are 'nvfp4-pack-quantized' by 'group', {NOT}",
        "mixtral",
    ),
    _refused(
        "experts of one of two groups",
        both(
            _by({"group_0": ATTENTION, "group_1": {**REST, "input_activations": TOKEN}}),
            _stored_as("weight_packed", "weight_scale"),
        ),
        "several of its config groups may be the one of its experts",
        "mixtral",
    ),
]
