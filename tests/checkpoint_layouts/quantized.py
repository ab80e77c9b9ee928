"""Layouts of quantized checkpoints: those that are expanded, and those that need more."""

from pathlib import Path
from typing import Any

from checkpoint_layouts.configs import ENGINE
from checkpoint_layouts.layout import Change, Layout, edit, put
from checkpoint_layouts.weights import Weights, tensors, write
from vlmkit.kit.install_command import install_command

UNQUANTIZED = "load the model that it was made from"
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BLOCK = 32


def by(method: str, **more: Any) -> Change:
    return edit("config.json", quantization_config={"quant_method": method, **more})


def in_fp8(folder: Path, *, is_plain: bool = False) -> None:
    """Round linear layers to eight bits with a scale for each block, or to the same numbers."""
    import torch

    weights: Weights = {}
    for name, value in tensors(folder).items():
        weights[name] = value
        if not name.endswith("_proj.weight"):
            continue
        blocks = value.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        scales = blocks.abs().amax((1, 3)) / 448
        wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        rounded = (value / wide).to(torch.float8_e4m3fn)
        weights[name] = rounded.float() * wide if is_plain else rounded
        if not is_plain:
            weights[name.replace(".weight", ".weight_scale_inv")] = scales
    write(folder, weights)
    if not is_plain:
        stated = {"activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
        by("fp8", modules_to_not_convert=["lm_head"], **stated)(folder)


def in_mxfp4(folder: Path, *, is_plain: bool = False) -> None:
    """Put experts of four bits with a scale for each block, or the same numbers."""
    import torch

    random = torch.Generator().manual_seed(0)
    weights: Weights = {}
    for name, value in sorted(tensors(folder).items()):
        if not name.endswith(("gate_up_proj", "down_proj")):
            weights[name] = value
            continue
        num, width, rows = value.shape
        shape = (num, rows, width // BLOCK, BLOCK // 2)
        blocks = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
        scales = torch.randint(121, 125, shape[:3], generator=random, dtype=torch.uint8)
        if is_plain:
            signed = torch.tensor([*FP4, *(-number for number in FP4)])
            halves = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
            numbers = signed[halves.int()] * torch.exp2(scales.float() - 127)[..., None]
            weights[name] = numbers.flatten(-2).transpose(1, 2).contiguous()
        else:
            weights |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    write(folder, weights)
    if not is_plain:
        kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
        by("mxfp4", modules_to_not_convert=[*kept, "model.embed_tokens"])(folder)


def needing(method: str, modules: str, packages: str, **stated: Any) -> Layout:
    return Layout(
        f"weights by {method}",
        by(method, **stated),
        f"{ENGINE}its weights are quantized by '{method}', and to read them {modules} must be "
        "installed",
        f"{install_command(packages)}; or {UNQUANTIZED}",
        needs=("accelerate",),
    )


def never_seen(method: str, modules: str, **stated: Any) -> Layout:
    return Layout(
        f"weights by {method}",
        by(method, **stated),
        f"{ENGINE}its weights are quantized by '{method}', and to read them {modules} must be "
        "installed, which was never tried with vlmkit",
        UNQUANTIZED,
        needs=("accelerate",),
    )


def unknown(method: str, change: Change) -> Layout:
    return Layout(
        f"weights by {method}",
        change,
        f"{ENGINE}its weights are quantized by '{method}', which is not supported",
        UNQUANTIZED,
    )


HOW = f"{ENGINE}its weights are quantized, and config.json does not say how"

LAYOUTS = [
    never_seen("hqq", "hqq"),
    never_seen("quanto", "optimum.quanto"),
    needing("torchao", "torchao", "torchao"),
    needing("auto-round", "auto_round", "auto-round"),
    Layout(
        "weights by bitsandbytes, which are plain",
        by("bitsandbytes", load_in_8bit=True),
        f"{ENGINE}it has no layers of 8 bits, which quantization_config states",
        UNQUANTIZED,
    ),
    Layout(
        "weights by gptq, which are plain",
        by("gptq", bits=4, group_size=128),
        f"{ENGINE}its quantization_config describes quantized layers, and it has none",
        UNQUANTIZED,
    ),
    unknown("modelopt", by("modelopt")),
    unknown("exl2", by("exl2", bits=4)),
    unknown("mlx", edit("config.json", quantization={"group_size": 64, "bits": 4})),
    Layout("weights by nobody", edit("config.json", quantization_config={}), HOW, UNQUANTIZED),
    Layout(
        "weights by a word",
        edit("config.json", quantization_config="int4"),
        HOW,
        UNQUANTIZED,
    ),
    unknown("modelopt", put("hf_quant_config.json", b"{}")),
    Layout(
        "weights by gptq, as it was first written",
        put("quantize_config.json", b'{"bits": 4}'),
        f"{ENGINE}its weights are quantized by 'gptq', and config.json has no "
        "'quantization_config'",
        "fetch a later form of it",
    ),
]
EXPANDED = {"fp8": ("llama", in_fp8), "mxfp4": ("gpt_oss", in_mxfp4)}
"""By method, the family and what quantizes it."""
