"""Checkpoints that the tools of methods write have the values that the tools compute.

``nox -s quantization_tools`` installs the tools that run on a CPU.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlmkit.kit.checkpoint import Checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")
tool: Any = pytest.importorskip("bitsandbytes")

import transformers  # noqa: E402 - it needs torch

import zoo  # noqa: E402
from parity import pipeline, runner  # noqa: E402
from quantized_checkpoints import folders  # noqa: E402
from vlmkit_torch.loading.reading import read_config, read_model  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

Saved = Callable[[str], Path]
FAMILIES = ("llama", "phi3", "qwen3, tied", "mixtral", "llava", "qwen2_5_vl")
SETTINGS = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4, quantized scales": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "nf4 as bfloat16": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_quant_storage": "bfloat16",
    },
    "int8": {"load_in_8bit": True},
}


def dequantized(weight: Any) -> Any:
    """Return the values of a weight of the tool in float32."""
    if isinstance(weight, tool.nn.Int8Params):
        return tool.functional.int8_vectorwise_dequant(weight.data, weight.SCB)
    state = weight.quant_state
    if state.shape[1] % state.blocksize == 0:
        return tool.functional.dequantize_4bit(weight.data, state)
    # Where a block crosses rows, the tool's kernel for CPUs (0.50) takes scales of other blocks.
    # The codes in one row instead give the values of its other kernels.
    flat = tool.functional.QuantState(
        absmax=scales_of(state),
        shape=torch.Size((state.shape.numel() // state.blocksize, state.blocksize)),
        blocksize=state.blocksize,
        quant_type=state.quant_type,
        dtype=torch.float32,
    )
    return tool.functional.dequantize_4bit(weight.data, flat).reshape(state.shape)


def scales_of(state: Any) -> Any:
    """Return the scales of a state, dequantized."""
    if not state.nested:
        return state.absmax
    return tool.functional.dequantize_blockwise(state.absmax, state.state2) + state.offset


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_weights_that_bitsandbytes_wrote_have_its_values(
    settings: dict[str, Any], family: str, saved: Saved, tmp_path: Path
) -> None:
    name, _, tied = family.partition(", ")
    family, source = name, saved(name)
    if tied:
        source = shutil.copytree(source, tmp_path / "tied")
        folders.change(source, lambda all_: all_.pop("lm_head.weight"))
        folders.edit(source, tie_word_embeddings=True)
    kind = transformers.AutoModelForImageTextToText
    if family in zoo.NAMES_TEXT:
        kind = transformers.AutoModelForCausalLM
    folder, plain = (tmp_path / part / family for part in ("quantized", "plain"))
    quantization: Any = transformers.BitsAndBytesConfig(**settings)
    model = kind.from_pretrained(
        source, quantization_config=quantization, dtype=torch.float32, device_map="cpu"
    )
    for place in (folder, plain):
        zoo.save_processor(family, place)
    model.save_pretrained(folder)
    wanted = {
        name: dequantized(weight)
        for name, weight in model.named_parameters()
        if isinstance(weight, tool.nn.Int8Params | tool.nn.Params4bit)
    }
    checkpoint = Checkpoint("m", folder)

    found = read_model(checkpoint, read_config(checkpoint), torch.float32)

    assert wanted
    for name, values in wanted.items():
        assert torch.equal(found.get_parameter(name), values), name
    found.save_pretrained(plain)
    answers = runner.expected(family, plain, runner.requests(family), banned=())
    with pipeline.load(folder) as served:
        streamed = pipeline.stream_all(served, runner.requests(family))
    assert [[s.token_id for s in samples] for _, samples in streamed] == [
        answer.token_ids for answer in answers
    ]
