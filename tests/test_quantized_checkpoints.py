"""Quantized checkpoints have the values that tools define; contradictory ones are rejected."""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import vlmkit
from vlmkit.errors import CheckpointError, PluginUnavailable, VlmkitError
from vlmkit.kit import memory
from vlmkit.kit.checkpoint import Checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

from quantized_checkpoints import (  # noqa: E402 - they need torch
    awq,
    bitsandbytes,
    compressed,
    contract,
    folders,
    gptq,
)
from quantized_checkpoints.folders import Quantized, Tensors  # noqa: E402
from vlmkit_quantized import formats  # noqa: E402
from vlmkit_torch.loading.reading import read_config, read_model  # noqa: E402
from vlmkit_torch.settings import ComputeSettings  # noqa: E402
from vlmkit_torch.support import refusal, sizing  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

Saved = Callable[[str], Path]
Make = Callable[..., Quantized]
TORCH = {"engine": {"use": "torch", "cache_tokens": 256}, "tokenizer": {"use": "hf"}}
UP = "model.layers.0.mlp.up_proj"
METHODS: dict[str, Make] = {
    "gptq": gptq.make,
    "awq": partial(awq.make, is_symmetric=True),
    "nf4": bitsandbytes.make,
    "int8": bitsandbytes.make_eight,
    "pack": compressed.make,
    "nvfp4": partial(compressed.make, scheme="nvfp4"),
}
"""All zero points are the middle, so that a change of one shows."""


def values_of(folder: Path) -> dict[str, Any]:
    """Return the values of all quantized weights, as they are read."""
    found = formats.weights(Checkpoint("m", folder))
    return {name: torch.from_numpy(weight.dense()) for name, weight in found.items()}


def assert_has_the_values(folders: Quantized) -> None:
    """Compare all values, bit by bit."""
    found = values_of(folders.folder)
    assert found.keys() == folders.values.keys()
    for name, wanted in folders.values.items():
        assert torch.equal(found[name], wanted), name


@pytest.mark.parametrize("is_ordered", [False, True], ids=["in order", "any order"])
@pytest.mark.parametrize("is_symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_weights_of_gptq_are_exact(
    bits: int, version: int, is_symmetric: bool, is_ordered: bool, saved: Saved, tmp_path: Path
) -> None:
    how = {"bits": bits, "version": version, "is_symmetric": is_symmetric, "is_ordered": is_ordered}

    assert_has_the_values(gptq.make(saved("llama"), tmp_path, **how))


@pytest.mark.parametrize("is_symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("group_size", [-1, 8, 16])
def test_weights_of_awq_are_exact(
    group_size: int, is_symmetric: bool, saved: Saved, tmp_path: Path
) -> None:
    made = awq.make(saved("llama"), tmp_path, group_size=group_size, is_symmetric=is_symmetric)

    assert_has_the_values(made)


@pytest.mark.parametrize("is_nested", [False, True], ids=["plain scales", "quantized scales"])
@pytest.mark.parametrize("blocksize", [32, 64, 4096])
@pytest.mark.parametrize("levels", ["nf4", "fp4"])
def test_weights_of_bitsandbytes_in_4_bits_are_exact(
    levels: str, blocksize: int, is_nested: bool, saved: Saved, tmp_path: Path
) -> None:
    how = {"levels": levels, "blocksize": blocksize, "is_nested": is_nested}

    assert_has_the_values(bitsandbytes.make(saved("llama"), tmp_path, **how))


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32], ids=str)
def test_bytes_may_be_stored_as_other_numbers(storage: Any, saved: Saved, tmp_path: Path) -> None:
    assert_has_the_values(bitsandbytes.make(saved("llama"), tmp_path, storage=storage))


def test_weights_of_bitsandbytes_in_8_bits_are_exact(saved: Saved, tmp_path: Path) -> None:
    assert_has_the_values(bitsandbytes.make_eight(saved("llama"), tmp_path))


def test_the_first_versions_of_bitsandbytes_state_no_method(saved: Saved, tmp_path: Path) -> None:
    assert_has_the_values(bitsandbytes.make(saved("llama"), tmp_path, quant_method=None))


@pytest.mark.parametrize("is_symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("strategy", ["tensor", "channel", "group"])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_packed_integers_of_compressed_tensors_are_exact(
    bits: int, strategy: str, is_symmetric: bool, saved: Saved, tmp_path: Path
) -> None:
    changes = {"num_bits": bits, "strategy": strategy, "symmetric": is_symmetric}
    if strategy != "group":
        changes["group_size"] = None

    assert_has_the_values(compressed.make(saved("llama"), tmp_path, weights=changes))


OF_COMPRESSED = {
    "int": {},
    "int, asymmetric": {"symmetric": False},
    "int, groups": {"strategy": "group", "group_size": 32},
    "fp8": {},
    "fp8, one scale": {"strategy": "tensor"},
    "fp8, blocks": {"strategy": "block", "block_structure": [32, 32]},
    "fp8, blocks that cross the edge": {"strategy": "block", "block_structure": [40, 40]},
    "nvfp4": {},
    "mxfp4": {},
    "mxfp8": {},
}


@pytest.mark.parametrize("which", OF_COMPRESSED)
def test_other_weights_of_compressed_tensors_are_exact(
    which: str, saved: Saved, tmp_path: Path
) -> None:
    scheme, weights = which.partition(",")[0], OF_COMPRESSED[which]

    assert_has_the_values(compressed.make(saved("llama"), tmp_path, scheme=scheme, weights=weights))


def test_weights_that_are_stated_to_be_dense_are_not_sparse(saved: Saved, tmp_path: Path) -> None:
    stated = {"format": "dense", "sparsity_structure": "unstructured"}

    assert_has_the_values(compressed.make(saved("llama"), tmp_path, sparsity_config=stated))


def test_columns_of_compressed_tensors_may_be_in_any_order(saved: Saved, tmp_path: Path) -> None:
    weights = {"actorder": "group"}

    assert_has_the_values(
        compressed.make(saved("llama"), tmp_path, is_ordered=True, weights=weights)
    )


def test_layers_may_be_of_different_schemes(saved: Saved, tmp_path: Path) -> None:
    four = compressed.make(saved("llama"), tmp_path / "4")
    eight = compressed.make(saved("llama"), tmp_path / "8", scheme="fp8")
    of_eight = {n: it for n, it in folders.tensors(eight.folder).items() if UP in n}
    folders.change(four.folder, lambda all_: remove(all_, UP) or all_.update(of_eight))
    second = {"targets": ["re:.*up_proj"], "weights": compressed.FP8, "format": "float-quantized"}
    stated = Checkpoint("m", four.folder).config["quantization_config"]["config_groups"]
    folders.state(four.folder, config_groups={**stated, "group_1": second})

    found = values_of(four.folder)

    assert torch.equal(found[f"{UP}.weight"], eight.values[f"{UP}.weight"])
    assert found.keys() == four.values.keys()


def remove(all_: Tensors, layer: str) -> None:
    """Remove the tensors of a layer."""
    for name in [name for name in all_ if layer in name]:
        del all_[name]


def test_a_zero_point_of_0_does_not_wrap(saved: Saved, tmp_path: Path) -> None:
    made = awq.make(saved("llama"), tmp_path)
    folders.change(made.folder, put("qzeros", torch.zeros_like))
    weight = formats.weights(Checkpoint("m", made.folder))[f"{UP}.weight"]
    packed = weight.packed()

    scales = torch.from_numpy(packed.scales).repeat_interleave(16, 1)
    assert torch.equal(
        torch.from_numpy(weight.dense()), torch.from_numpy(packed.codes).float() * scales
    )


@pytest.mark.parametrize("group_size", [-1, 8, 40], ids=["a row", "8", "40, the last one smaller"])
def test_groups_may_have_any_size(group_size: int, saved: Saved, tmp_path: Path) -> None:
    assert_has_the_values(gptq.make(saved("llama"), tmp_path, group_size=group_size))


@pytest.mark.parametrize("stated", ["gptq", "gptq_v2", None])
@pytest.mark.parametrize("version", [1, 2])
def test_symmetric_zero_points_determine_the_version_whatever_the_config_states(
    version: int, stated: str | None, saved: Saved, tmp_path: Path
) -> None:
    made = gptq.make(saved("llama"), tmp_path, version=version, checkpoint_format=stated)

    assert_has_the_values(made)


def test_layers_may_have_bits_of_their_own(saved: Saved, tmp_path: Path) -> None:
    four = gptq.make(saved("llama"), tmp_path / "4")
    eight = gptq.make(saved("llama"), tmp_path / "8", bits=8)
    of_eight = folders.tensors(eight.folder)
    folders.change(four.folder, lambda all_: all_.update({n: of_eight[n] for n in all_ if UP in n}))
    folders.state(four.folder, dynamic={r"+:.*up_proj.*": {"bits": 8}})

    found = values_of(four.folder)

    assert torch.equal(found[f"{UP}.weight"], eight.values[f"{UP}.weight"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("method", METHODS)
def test_values_are_rounded_to_the_precision_of_the_model_once(
    method: str, dtype: str, saved: Saved, tmp_path: Path
) -> None:
    made = METHODS[method](saved("llama"), tmp_path)
    folders.edit(made.folder, dtype="bfloat16")
    checkpoint = Checkpoint("m", made.folder)

    model = read_model(checkpoint, read_config(checkpoint), getattr(torch, dtype))

    for name, wanted in made.values.items():
        assert torch.equal(model.get_parameter(name), wanted.to(getattr(torch, dtype)))


@pytest.mark.parametrize(
    "listed",
    [["lm_head"], ["model.norm"], ["language_model.embed_tokens.linear"], ["re:.*visual.*"], []],
    ids=str,
)
def test_lists_of_plain_layers_may_have_names_of_modules(
    listed: list[str], saved: Saved, tmp_path: Path
) -> None:
    assert_has_the_values(awq.make(saved("llama"), tmp_path, modules_to_not_convert=listed))


@pytest.mark.parametrize("method", METHODS)
def test_the_memory_of_expanded_weights_is_known_before_they_are_read(
    method: str, saved: Saved, tmp_path: Path
) -> None:
    made = METHODS[method](saved("llama"), tmp_path)
    num = sum(weight.numel() for weight in folders.tensors(made.plain).values())
    checkpoint = Checkpoint("m", made.folder)

    assert sizing.weight_bytes(checkpoint, "float32") == 4 * num
    assert sizing.weight_bytes(checkpoint, "bfloat16") == 2 * num


def test_a_large_quantized_model_is_expanded_to_the_precision_that_fits(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = gptq.make(saved("llama"), tmp_path)
    folders.edit(made.folder, dtype="bfloat16", torch_dtype=None)
    checkpoint = Checkpoint("m", made.folder)
    rest = sizing.WORKING_BYTES + sizing.MIN_CACHE_BYTES
    for dtype in ("float32", "bfloat16"):
        available = sizing.weight_bytes(checkpoint, dtype) + rest
        monkeypatch.setattr(memory, "available_bytes", lambda found=available: found)
        assert sizing.plan(checkpoint, ComputeSettings()).dtype == dtype


@pytest.mark.parametrize(("much_bytes", "level"), [(0, "WARNING"), (2**30, "INFO")])
def test_the_log_says_how_much_memory_expanded_weights_take(
    much_bytes: int,
    level: str,
    saved: Saved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = gptq.make(saved("llama"), tmp_path)
    monkeypatch.setattr(sizing, "MUCH_BYTES", much_bytes)
    with caplog.at_level("INFO", sizing.__name__), vlmkit.load(made.folder, **TORCH):
        pass

    (record,) = [it for it in caplog.records if "are expanded to float32" in it.getMessage()]
    assert record.levelname == level


@pytest.mark.parametrize("test", contract.CONTRACT)
@pytest.mark.parametrize("method", METHODS)
def test_a_format_keeps_the_contract_of_readers(
    method: str, test: str, saved: Saved, tmp_path: Path
) -> None:
    made = METHODS[method](saved("llama"), tmp_path)
    contract.check(test, made)


# Bad input.


@dataclass(frozen=True)
class Flaw:
    """A contradiction in a checkpoint.

    Attributes:
        make: makes the checkpoint.
        message: a part of the error.
        tensors: changes tensors.
        stated: fields of ``quantization_config`` to set, or a function that returns them.
        tie: whether the head is stated to be the embedding.
    """

    make: Make
    message: str
    tensors: Callable[[Tensors], object] = lambda _: None
    stated: Any = None
    tie: bool = False


def of_weights(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that returns config groups with other weights."""

    def change(stated: dict[str, Any]) -> dict[str, Any]:
        (group,) = stated["config_groups"].values()
        return {"config_groups": {"group_0": {**group, "weights": {**group["weights"], **values}}}}

    return change


def put(part: str, tensor: Any) -> Callable[[Tensors], None]:
    """Return a change of one tensor of a layer; a function gets the old one, None removes it."""

    def change(all_: Tensors) -> None:
        name = f"{UP}.{part}"
        new = tensor(all_[name].clone()) if callable(tensor) else tensor
        all_.pop(name, None)
        if new is not None:
            all_[name] = new

    return change


def at(place: Any, value: Any) -> Callable[[Any], Any]:
    """Return a function that sets numbers of a tensor."""

    def change(tensor: Any) -> Any:
        tensor[place] = value
        return tensor

    return change


def layer(problem: str) -> str:
    return f"its layer '{UP}' {problem}"


ASYMMETRIC = partial(gptq.make, is_symmetric=False)
NOT = "not supported"
FLAWS = {
    "gptq: bits that contradict the shapes": Flaw(
        gptq.make,
        "has a 'qweight' of shape [12, 64], which contradicts 8 bits in groups of 16",
        stated={"bits": 8},
    ),
    "gptq: groups that contradict the shapes": Flaw(
        gptq.make, "which contradicts 4 bits in groups of 32", stated={"group_size": 32}
    ),
    "gptq: a layer of another size": Flaw(
        gptq.make,
        layer("has a 'qweight' of shape [4, 96], which contradicts"),
        put("qweight", lambda old: old[:4].clone()),
    ),
    "gptq: no zero points": Flaw(gptq.make, layer("has no 'qzeros'"), put("qzeros", None)),
    "gptq: scales without weights": Flaw(
        gptq.make, layer("has no 'qweight'"), put("qweight", None)
    ),
    "gptq: scales that are not finite": Flaw(
        gptq.make,
        layer("has scales that are not finite"),
        put("scales", at((1, 2), float("inf"))),
    ),
    "gptq: words of another type": Flaw(
        gptq.make,
        layer("has a 'qweight' of type 'I64', not I32 or U32"),
        put("qweight", lambda old: old.long()),
    ),
    "gptq: a symmetric layer with another zero point": Flaw(
        gptq.make,
        layer("has zero points other than 8, and its quantization is symmetric"),
        put("qzeros", at((0, 0), 0x77777757)),
    ),
    "gptq: a zero point that tools disagree on": Flaw(
        ASYMMETRIC,
        layer("has stored zero points of 15, which tools read as 0 or as 16"),
        put("qzeros", at((0, 0), -1)),
        stated={"meta": None},
    ),
    "gptq: no statement of the version": Flaw(
        ASYMMETRIC,
        "does not say whether its zero points are those of GPTQ's version 1 or 2",
        stated={"checkpoint_format": None},
    ),
    "gptq: an order that is not stated": Flaw(
        partial(gptq.make, is_ordered=True),
        "has its columns ('g_idx') in an order that is not stated ('desc_act')",
        stated={"desc_act": False},
    ),
    "gptq: an order without groups": Flaw(
        partial(gptq.make, is_ordered=True),
        layer("has no 'g_idx', which its order of columns ('desc_act') needs"),
        put("g_idx", None),
    ),
    "gptq: a group of another size": Flaw(
        partial(gptq.make, is_ordered=True),
        layer("has groups ('g_idx') that are not of 16 columns"),
        put("g_idx", at(slice(0, 20), 1)),
    ),
    "gptq: a column of no group": Flaw(
        partial(gptq.make, is_ordered=True),
        layer("has groups ('g_idx') that are not of 16 columns"),
        put("g_idx", at(0, -1)),
    ),
    "gptq: an unknown tensor of a layer": Flaw(
        gptq.make,
        layer("has a tensor 'rotation', which the format does not define"),
        put("rotation", torch.eye(4)),
    ),
    "gptq: rotations": Flaw(
        gptq.make,
        f"its quantization has a rotation of weights and activations ('rotation'), {NOT}",
        stated={"rotation": "hadamard"},
    ),
    "gptq: a layout of kernels": Flaw(
        gptq.make,
        "its quantization has the layout 'marlin', and supported are gptq, gptq_v2",
        stated={"checkpoint_format": "marlin"},
    ),
    "gptq: bits without support": Flaw(
        gptq.make, "has weights of bits 5, and supported are 2, 3, 4, 8", stated={"bits": 5}
    ),
    "gptq: no bits": Flaw(gptq.make, "needs an integer in 'bits'", stated={"bits": None}),
    "gptq: a text for bits": Flaw(gptq.make, "needs an integer in 'bits'", stated={"bits": "4"}),
    "gptq: plain layers": Flaw(
        gptq.make,
        "its quantization_config describes quantized layers, and it has none",
        lambda all_: [all_.pop(name) for name in list(all_) if "weight" not in name.split(".")],
    ),
    "awq: bits that it does not have": Flaw(
        awq.make, "its quantization has weights of bits 8, and supported are 4", stated={"bits": 8}
    ),
    "awq: groups that contradict the shapes": Flaw(
        awq.make,
        "of shape [96, 8] and scales of shape [6, 64], which contradict groups of 32",
        stated={"group_size": 32},
    ),
    "awq: another layout": Flaw(
        awq.make,
        "its quantization has the layout 'gemv', and supported are gemm",
        stated={"version": "GEMV"},
    ),
    "awq: zero points that are not stated": Flaw(
        awq.make,
        "has zero points, and quantization_config has none ('zero_point')",
        stated={"zero_point": False},
    ),
    "awq: scales without weights": Flaw(
        awq.make,
        "its layer 'model.layers.0.mlp.act' has no 'qweight'",
        lambda all_: all_.update({"model.layers.0.mlp.act.scales": torch.ones(96)}),
    ),
    "awq: scales that are not finite": Flaw(
        awq.make,
        layer("has scales that are not finite"),
        put("scales", at((0, 0), float("nan"))),
    ),
    "awq: no zero points": Flaw(awq.make, layer("has no 'qzeros'"), put("qzeros", None)),
    "awq: a quantized layer that is listed as plain": Flaw(
        awq.make,
        layer("is quantized, and quantization_config lists it as plain"),
        stated={"modules_to_not_convert": ["lm_head", UP]},
    ),
    "awq: a list of plain layers without any": Flaw(
        awq.make,
        "lists plain layers ('modules_to_not_convert'), and it has none of them, such as 'visual'",
        stated={"modules_to_not_convert": ["visual"]},
    ),
    "nf4: levels that contradict the state": Flaw(
        bitsandbytes.make,
        "has levels of 'nf4', and quantization_config states 'fp4'",
        stated={"bnb_4bit_quant_type": "fp4"},
    ),
    "nf4: other levels": Flaw(
        bitsandbytes.make,
        layer("has other levels than those of 'nf4'"),
        put("weight.quant_map", torch.linspace(-1, 1, 16)),
    ),
    "nf4: layers of 8 bits by the config": Flaw(
        bitsandbytes.make,
        "it has layers of 4 bits, not stated in quantization_config",
        stated={"load_in_4bit": False, "load_in_8bit": True},
    ),
    "nf4: another number of scales": Flaw(
        bitsandbytes.make,
        layer("has 3072 bytes and 95 scales, which contradict shape [96, 64] in blocks of 64"),
        put("weight.absmax", lambda old: old[:-1].clone()),
    ),
    "nf4: scales without a state": Flaw(
        bitsandbytes.make,
        layer("has scales and no 'quant_state'"),
        put("weight.quant_state.bitsandbytes__nf4", None),
    ),
    "nf4: scales without weights": Flaw(
        bitsandbytes.make, layer("has no 'weight'"), put("weight", None)
    ),
    "nf4: scales that are not finite": Flaw(
        bitsandbytes.make,
        layer("has scales that are not finite"),
        put("weight.nested_absmax", at(0, float("inf"))),
    ),
    "nf4: quantized scales that the config denies": Flaw(
        bitsandbytes.make,
        "contradicts the configuration about whether scales are quantized themselves",
        stated={"bnb_4bit_use_double_quant": False},
    ),
    "nf4: a state that is no JSON": Flaw(
        bitsandbytes.make,
        layer("has a 'quant_state' that is not supported"),
        put("weight.quant_state.bitsandbytes__nf4", at(0, 0)),
    ),
    "nf4: a quantized layer that is listed as plain": Flaw(
        bitsandbytes.make,
        layer("is quantized, and quantization_config lists it as plain"),
        stated={"llm_int8_skip_modules": [UP]},
    ),
    "int8: scales of another size": Flaw(
        bitsandbytes.make_eight,
        layer("has weights of shape [96, 64] and scales of shape [95]"),
        put("SCB", lambda old: old[:-1].clone()),
    ),
    "int8: no scales": Flaw(bitsandbytes.make_eight, layer("has no 'SCB'"), put("SCB", None)),
    "int8: scales without weights": Flaw(
        bitsandbytes.make_eight, layer("has no 'weight'"), put("weight", None)
    ),
    "int8: a layout of kernels": Flaw(
        bitsandbytes.make_eight,
        layer("has weights in another layout than rows ('weight_format')"),
        put("weight_format", torch.tensor(2, dtype=torch.uint8)),
    ),
    "int8: scales that are not finite": Flaw(
        bitsandbytes.make_eight,
        layer("has scales that are not finite"),
        put("SCB", at(0, float("nan"))),
    ),
    "compressed: blocks without end": Flaw(
        partial(compressed.make, scheme="fp8"),
        "needs two sizes in 'block_structure'",
        stated=of_weights(strategy="block", block_structure=[2**40, 8]),
    ),
    "compressed: bits that contradict the shapes": Flaw(
        compressed.make,
        "has I32 weights of shape [64, 12] and BF16 scales of shape [64, 6], which contradict",
        stated=of_weights(num_bits=8),
    ),
    "compressed: groups that contradict the shapes": Flaw(
        compressed.make,
        "has I32 weights of shape [64, 12] and BF16 scales of shape [64, 6], which contradict",
        stated=of_weights(group_size=32),
    ),
    "compressed: another shape": Flaw(
        compressed.make,
        layer("has a 'weight_shape' of [95, 64] and 96 packed rows"),
        put("weight_shape", torch.tensor([95, 64])),
    ),
    "compressed: no scales": Flaw(
        compressed.make, layer("has no 'weight_scale'"), put("weight_scale", None)
    ),
    "compressed: scales without weights": Flaw(
        compressed.make, layer("has scales and no weight"), put("weight_packed", None)
    ),
    "compressed: zero points that are absent": Flaw(
        compressed.make, "which contradict its config groups", stated=of_weights(symmetric=False)
    ),
    "compressed: zero points that are not stated": Flaw(
        partial(compressed.make, weights={"symmetric": False}),
        "has zero points, and its config group is symmetric",
        stated=of_weights(symmetric=True),
    ),
    "compressed: scales that are not finite": Flaw(
        compressed.make,
        layer("has scales that are not finite"),
        put("weight_scale", at((0, 0), float("nan"))),
    ),
    "compressed: a weight that is no number": Flaw(
        partial(compressed.make, scheme="fp8"),
        f"weight '{UP}.weight' has values that are not finite",
        put("weight", lambda old: at((0, 0), 0x7F)(old.view(torch.uint8)).view(old.dtype)),
    ),
    "compressed: a scale of scales that is zero": Flaw(
        partial(compressed.make, scheme="nvfp4"),
        layer("has a 'weight_global_scale' that is zero or not finite"),
        put("weight_global_scale", torch.zeros(1)),
    ),
    "compressed: a group without columns": Flaw(
        partial(compressed.make, is_ordered=True),
        layer("has groups ('weight_g_idx') that are not of 16 columns"),
        put("weight_g_idx", at(slice(0, 20), 1)),
    ),
    "compressed: two schemes that fit": Flaw(
        compressed.make,
        "fits several of its config groups",
        stated={
            "config_groups": {
                "a": {"targets": [], "weights": compressed.INT4},
                "b": {"targets": [], "weights": {**compressed.INT4, "symmetric": False}},
            }
        },
        tensors=lambda all_: all_.update(
            {f"{UP}.weight_zero_point": torch.zeros((12, 4), dtype=torch.int32)}
        ),
    ),
    "compressed: a quantized layer that is listed as plain": Flaw(
        compressed.make,
        layer("is quantized, and quantization_config lists it as plain"),
        stated={"ignore": ["lm_head", UP]},
    ),
    "compressed: sparse weights": Flaw(
        compressed.make,
        f"its quantization has sparse weights ('sparsity_config'), {NOT}",
        stated={"sparsity_config": {"format": "sparse-24-bitmask"}},
    ),
    "compressed: transforms": Flaw(
        compressed.make,
        f"its quantization has transforms of weights and activations ('transform_config'), {NOT}",
        stated={"transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}},
    ),
    "gptq: a head that is the embedding": Flaw(
        gptq.make,
        "its layer 'lm_head' is quantized and is the embedding ('tie_word_embeddings')",
        lambda all_: (
            remove(all_, "lm_head")
            or all_.update({f"lm_head.{p}": all_[f"{UP}.{p}"].clone() for p in gptq.PARTS})
        ),
        tie=True,
    ),
    "gptq: an embedding": Flaw(
        gptq.make,
        "its layer 'model.embed_tokens' is a quantized embedding, which is not supported",
        lambda all_: all_.update(
            {f"model.embed_tokens.{p}": all_[f"{UP}.{p}"].clone() for p in gptq.PARTS}
        ),
    ),
}


@pytest.mark.parametrize("flaw", FLAWS.values(), ids=FLAWS)
def test_a_contradictory_checkpoint_is_rejected_with_the_layer(
    flaw: Flaw, saved: Saved, tmp_path: Path
) -> None:
    folder = flaw.make(saved("llama"), tmp_path).folder
    folders.change(folder, flaw.tensors)
    stated = Checkpoint("m", folder).config["quantization_config"]
    folders.state(folder, **(flaw.stated(stated) if callable(flaw.stated) else flaw.stated or {}))
    if flaw.tie:
        folders.edit(folder, tie_word_embeddings=True)

    with pytest.raises((CheckpointError, PluginUnavailable)) as caught:
        vlmkit.load(folder, **TORCH)

    assert flaw.message in str(caught.value)
    assert re.search("load the model that it was made from|config.json", caught.value.hint)


def test_a_number_without_end_is_rejected(saved: Saved, tmp_path: Path) -> None:
    made = gptq.make(saved("llama"), tmp_path, group_size=16)
    folders.state(made.folder, group_size=10**30)

    reason = formats.objection(Checkpoint("m", made.folder))

    assert reason == "its quantization_config needs an integer in 'group_size'"


# Mutations.


def flipped_bit(folder: Path, dice: random.Random) -> None:
    """Flip a bit of the header of a file."""
    file = folder / folders.WEIGHTS
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[:8], "little")
    content[dice.randrange(8 + length)] ^= 1 << dice.randrange(8)
    file.write_bytes(content)


def other_shape(folder: Path, dice: random.Random) -> None:
    """Cut a row or a column off a tensor of a quantized layer, or swap its axes."""

    def change(all_: Tensors) -> None:
        name = dice.choice(sorted(name for name in all_ if "proj" in name))
        tensor = all_[name]
        axis = dice.randrange(tensor.ndim) if tensor.ndim else 0
        cut = tensor.narrow(axis, 0, max(tensor.shape[axis] - 1, 0)) if tensor.ndim else tensor
        is_square = len(set(tensor.shape)) == 1  # whose axes look alike
        swap = tensor.ndim == 2 and not is_square and dice.random() < 0.5
        all_[name] = (tensor.T if swap else cut).clone().contiguous()

    folders.change(folder, change)


def other_config(folder: Path, dice: random.Random) -> None:
    """Change or remove a field of ``quantization_config``, at any depth."""
    stated = json.loads((folder / "config.json").read_text())["quantization_config"]
    part = stated
    while True:
        key = dice.choice(sorted(part))
        if not isinstance(part[key], dict) or not part[key] or dice.random() < 0.2:
            break
        part = part[key]
    old = part.pop(key)
    if dice.random() < 0.7:
        others = [2, 3, 8, 32, -1, 0, "x", None, True, False, [], {}]
        part[key] = dice.choice([other for other in others if other != old])
    folders.edit(folder, quantization_config=stated)


def other_zero_point(folder: Path, dice: random.Random) -> None:
    """Change a zero point of a symmetric layer, or a scale to a number that is not finite."""

    def change(all_: Tensors) -> None:
        zeros = sorted(name for name in all_ if name.endswith("zeros"))
        if zeros:
            numbers = all_[dice.choice(zeros)].view(torch.int32).view(-1)
            numbers[dice.randrange(len(numbers))] ^= 1 << dice.randrange(31)
            return
        scales = sorted(n for n in all_ if all_[n].is_floating_point() and "proj" in n)
        numbers = all_[dice.choice(scales)].view(-1)
        numbers[dice.randrange(len(numbers))] = float("nan")

    folders.change(folder, change)


MUTATIONS = (flipped_bit, other_shape, other_config, other_zero_point)
NUM_MUTATED = 25  # of each mutation and method


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
@pytest.mark.parametrize("method", METHODS)
def test_a_mutated_checkpoint_is_rejected_or_has_the_same_weights(
    method: str, mutate: Callable[[Path, random.Random], None], saved: Saved, tmp_path: Path
) -> None:
    made = METHODS[method](saved("llama"), tmp_path / "original")
    original = loaded(made.folder)
    num_rejected = 0
    for number in range(NUM_MUTATED):
        mutated = shutil.copytree(made.folder, tmp_path / str(number))  # the original is mapped
        mutate(mutated, random.Random(number))
        try:
            found = loaded(mutated)
        except VlmkitError:
            num_rejected += 1
            continue
        assert found.keys() == original.keys(), number
        assert all(torch.equal(found[name], original[name]) for name in original), number
    assert num_rejected


def loaded(folder: Path) -> dict[str, Any]:
    """Return the weights of a model as the engine has them.

    Raises:
        VlmkitError: it is rejected.
    """
    checkpoint = Checkpoint("m", folder)
    if reason := refusal.engine_cannot_serve(checkpoint):
        raise PluginUnavailable(reason)
    return dict(read_model(checkpoint, read_config(checkpoint), torch.float32).state_dict())
