"""Quantized checkpoints are answered as by transformers with the dequantized weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity import pipeline, runner
from quantized_checkpoints import awq, bitsandbytes, compressed, gptq
from quantized_checkpoints.folders import Quantized

Saved = Callable[[str], Path]
Make = Callable[..., Quantized]
TIED = "qwen3, tied"
FAMILIES = (
    "llama",
    TIED,
    "phi3",  # whose fused projections transformers keeps as they are
    "mixtral",  # whose experts transformers merges
    "llava",
    "qwen2_5_vl",
)
METHODS: dict[str, tuple[Make, dict[str, Any]]] = {
    "gptq": (gptq.make, {}),
    "gptq, version 2, any order": (
        gptq.make,
        {"version": 2, "is_symmetric": False, "is_ordered": True},
    ),
    "awq": (awq.make, {}),
    "nf4": (bitsandbytes.make, {}),
    "fp4": (bitsandbytes.make, {"levels": "fp4", "is_nested": False}),
    "int8": (bitsandbytes.make_eight, {}),
    "compressed, packed": (compressed.make, {"weights": {"symmetric": False}}),
    "compressed, fp8": (compressed.make, {"scheme": "fp8"}),
    "compressed, nvfp4": (compressed.make, {"scheme": "nvfp4"}),
}


def answers(folder: Path) -> list[list[int]]:
    """Return the tokens of all requests to the family by whose name a folder is called."""
    with pipeline.load(folder) as model:
        streamed = pipeline.stream_all(model, runner.requests(folder.name))
    return [[sample.token_id for sample in samples] for _, samples in streamed]


def made(method: str, family: str, saved: Saved, place: Path) -> Quantized:
    make, how = METHODS[method]
    name = family.removesuffix(", tied")
    return make(saved(name), place, is_tied=name != family, **how)


def assert_is_answered_as_plain(folders: Quantized) -> None:
    """Compare the answers of both folders, those of the plain one by transformers."""
    asked = runner.requests(folders.plain.name)
    wanted = runner.expected(folders.plain.name, folders.plain, asked, banned=())
    assert answers(folders.folder) == [answer.token_ids for answer in wanted]


def test_a_plain_tower_may_be_listed_by_modules_below_its_layers(
    saved: Saved, tmp_path: Path
) -> None:
    layers = [
        f"model.vision_tower.vision_model.encoder.layers.{layer}.self_attn.{part}.linear"
        for layer in range(2)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj")
    ]
    ignore = ["lm_head", *layers]

    assert_is_answered_as_plain(
        compressed.make(saved("llava"), tmp_path, plain="vision", ignore=ignore)
    )


PAIRS = [
    pytest.param(
        method, family, marks=() if family == "llama" or method == "gptq" else pytest.mark.slow
    )
    for method in METHODS
    for family in FAMILIES
]
"""Each method with one family and each family with one method run always."""


@pytest.mark.parametrize(("method", "family"), PAIRS)
def test_a_quantized_checkpoint_is_answered_as_its_dequantized_weights(
    method: str, family: str, saved: Saved, tmp_path: Path
) -> None:
    assert_is_answered_as_plain(made(method, family, saved, tmp_path))
