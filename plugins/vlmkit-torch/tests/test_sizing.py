"""A CPU uses the fastest precision that fits; too large models are refused before their weights."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vlmkit.errors import CheckpointError
from vlmkit.kit import memory, processor
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch import plugin
from vlmkit_torch.settings import ComputeSettings, EncoderSettings, EngineSettings
from vlmkit_torch.support import sizing

MANY = 2**33  # the number of weights of a large model
Make = Callable[..., Checkpoint]
ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def sparse_weights(path: Path, **numbers: int) -> None:
    """Write a sparse safetensors file of zeros of each type, which needs no disk space."""
    header, end = {}, 0
    for dtype, number in numbers.items():
        size = number * ITEM_BYTES[dtype]
        header[dtype] = {"dtype": dtype, "shape": [number], "data_offsets": [end, end + size]}
        end += size
    data = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(data)) + data)
        file.truncate(8 + len(data) + end)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(config: dict[str, Any], **numbers: int) -> Checkpoint:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
        sparse_weights(tmp_path / "model.safetensors", **numbers)
        return Checkpoint("large", tmp_path)

    return made


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the reported processor features and available memory."""

    def set_machine(*features: str, available: int | None = 2**50) -> None:
        monkeypatch.setattr(processor, "features", lambda: frozenset(features))
        monkeypatch.setattr(memory, "available_bytes", lambda: available)

    return set_machine


BF16, F16, F32 = {"dtype": "bfloat16"}, {"torch_dtype": "float16"}, {"dtype": "float32"}


@pytest.mark.parametrize(
    ("features", "config", "numbers", "names"),
    [
        (("avx2",), BF16, {"BF16": 9}, ("float32", "bfloat16")),
        (("avx2", "avx512_bf16"), BF16, {"BF16": 9}, ("bfloat16",)),
        (("avx2", "amx_bf16"), BF16, {"BF16": 9, "F32": 2}, ("bfloat16",)),
        (("avx512_bf16",), {"text_config": BF16}, {"BF16": 9}, ("bfloat16",)),
        (("avx512_bf16",), {"thinker_config": BF16}, {"BF16": 9}, ("bfloat16",)),
        (
            ("avx512_bf16",),
            BF16,
            {"BF16": 2, "F32": 9},
            ("float32",),
        ),  # the weights would be rounded
        (("avx512_bf16",), {}, {"BF16": 9}, ("float32",)),
        (("avx512_bf16",), F16, {"F16": 9}, ("float32", "float16")),
        (("avx512_bf16",), F32, {"F32": 9}, ("float32",)),
        (
            ("avx512_bf16",),
            {**BF16, "quantization_config": {"quant_method": "fp8"}},
            {"BF16": 9},
            ("float32",),
        ),
    ],
)
def test_supported_precisions_are_ordered_by_speed_and_include_the_checkpoints(
    make: Make,
    machine: Callable[..., None],
    features: tuple[str, ...],
    config: dict[str, Any],
    numbers: dict[str, int],
    names: tuple[str, ...],
) -> None:
    machine(*features)
    assert sizing.candidates(make(config, **numbers)) == names


def test_the_next_precision_is_used_if_the_fastest_does_not_fit(
    make: Make, machine: Callable[..., None]
) -> None:
    checkpoint = make(BF16, BF16=MANY)
    rest = sizing.WORKING_BYTES + sizing.MIN_CACHE_BYTES
    for available, dtype in (
        (4 * MANY + rest, "float32"),
        (4 * MANY + rest - 1, "bfloat16"),
        (2 * MANY + rest, "bfloat16"),
    ):
        machine("avx2", available=available)
        assert sizing.plan(checkpoint, ComputeSettings()).dtype == dtype

    machine("avx2", available=2 * MANY + rest - 1)
    with pytest.raises(CheckpointError) as raised:
        sizing.plan(checkpoint, ComputeSettings())
    assert str(raised.value) == (
        "model 'large' does not fit into memory: weights, cache and working memory take 32.6 GiB "
        "in float32 and 16.6 GiB in bfloat16, and 16.6 GiB are available"
    )


def test_a_requested_precision_is_used_or_refused(make: Make, machine: Callable[..., None]) -> None:
    checkpoint = make(BF16, BF16=MANY)
    machine("avx512_bf16", available=3 * MANY)
    assert sizing.plan(checkpoint, ComputeSettings(dtype="bfloat16")).dtype == "bfloat16"
    with pytest.raises(CheckpointError, match=r"32\.6 GiB in float32, and 24\.0 GiB") as raised:
        sizing.plan(checkpoint, ComputeSettings(dtype="float32"))
    assert 'engine.dtype = "bfloat16"' in str(raised.value.hint)


def test_the_cache_gets_the_remaining_memory_unless_its_size_is_stated(
    make: Make, machine: Callable[..., None]
) -> None:
    checkpoint, own = make(BF16, BF16=MANY), 4 * MANY + sizing.WORKING_BYTES
    for left, cache in ((2**28, 2**28), (2**40, sizing.CACHE_BYTES)):
        machine(available=own + left)
        assert sizing.plan(checkpoint, EngineSettings(dtype="float32")).cache_bytes == cache

    machine(available=own + 2**30)
    sizing.plan(checkpoint, EngineSettings(dtype="float32", cache_gib=1))
    with pytest.raises(CheckpointError) as raised:
        sizing.plan(checkpoint, EngineSettings(dtype="float32", cache_gib=1.1))
    assert "engine.cache_gib" in str(raised.value.hint)


def test_nothing_is_refused_if_the_available_memory_is_unknown(
    make: Make, machine: Callable[..., None]
) -> None:
    machine(available=None)
    plan = sizing.plan(make(F32, F32=MANY), ComputeSettings())
    assert plan == sizing.CpuPlan("float32", sizing.CACHE_BYTES)


def test_an_encoder_with_automatic_settings_uses_the_engines() -> None:
    stated = {"dtype": "bfloat16", "cache_gib": 2}
    for engine, follows in (("torch", True), ("vlmkit-torch/torch", True), ("onnx", False)):
        context = BuildContext(settings=EncoderSettings(), components={"engine": (engine, stated)})
        expected = EngineSettings(**stated) if follows else EncoderSettings()
        assert sizing.settings_of(context) == expected
    own = EncoderSettings(dtype="float32")
    context = BuildContext(settings=own, components={"engine": ("torch", stated)})
    assert sizing.settings_of(context) == own


def test_a_model_that_fits_in_no_precision_is_refused(
    make: Make, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "ACCELERATORS", ())
    monkeypatch.setattr(sys, "platform", "linux")
    checkpoint = make(F32, F32=MANY)
    need = 2 * MANY + sizing.WORKING_BYTES + sizing.MIN_CACHE_BYTES
    for available, is_served in ((need, True), (need - 1, False), (None, True)):
        machine("avx2", available=available)
        reason = plugin._engine_cannot_serve(checkpoint)
        assert (reason is None) is is_served
    machine("avx2", available=need - 1)
    assert "take 16.6 GiB in bfloat16, and 16.6 GiB are" in str(
        plugin._engine_cannot_serve(checkpoint)
    )
    planned = replace(checkpoint, is_for_another_machine=True)
    assert plugin._engine_cannot_serve(planned) is None
    assert sizing.plan(planned, ComputeSettings()).dtype == "float32"
    monkeypatch.setattr(sizing, "ACCELERATORS", (checkpoint.path,))  # a GPU may have enough memory
    assert plugin._engine_cannot_serve(checkpoint) is None


BUILD = """
import sys
from pathlib import Path

from vlmkit.errors import VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.loader import load
from vlmkit.plugins.registry import BuildContext

context = BuildContext(checkpoint=Checkpoint("large", Path(sys.argv[1])))
for registry in (load().media_encoders, load().engines):
    try:
        registry.build("torch", {"device": "cpu"}, context)
    except VlmkitError as error:
        print(error, "torch" in sys.modules)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much is available")
def test_a_too_large_model_is_refused_before_torch_is_imported(make: Make) -> None:
    parts = {"text_config": {"model_type": "llama"}, "vision_config": {"model_type": "clip"}}
    checkpoint = make({**BF16, "model_type": "llava", **parts}, BF16=2**42)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(checkpoint.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "does not fit into memory" in line
        assert "GiB are available" in line
        assert line.endswith(" False"), "torch was imported"
