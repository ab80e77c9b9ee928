"""Families that cannot be exported are refused with a reason, from small files alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

import zoo
from parity import families
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint

pytestmark = pytest.mark.torch

SIGHT = "model type {name!r} takes images in a way that vlmkit-onnx does not support"
REASONS = {
    "llama4": "model type 'llama4_text' has ",
    "lfm2_vl": "model type 'lfm2' has layers of type 'conv'",
    "mllama": "model type 'mllama_text_model' has cross-attention to image features",
    "minicpmv4_6": "model type 'qwen3_5_text' has layers of type 'linear_attention'",
}
TAKEN = families.EXPORTED_MORE
REFUSED = sorted({*zoo.NAMES_MORE, *zoo.NAMES_OTHERS} - {*TAKEN})


def saved_as(name: str, saved: Callable[[str], Path]) -> Checkpoint:
    return Checkpoint(name, saved(name))


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_cannot_be_exported_is_refused_by_its_reason(
    name: str, saved: Callable[[str], Path]
) -> None:
    from vlmkit_onnx.export.refusal import objection

    reason = objection(saved_as(name, saved))
    assert reason is not None
    wanted = REASONS.get(name, SIGHT.format(name=name))
    assert reason.startswith(f"it cannot be exported: {wanted}")


@pytest.mark.parametrize("name", families.EXPORTED)
def test_a_family_that_can_be_exported_is_not_refused(
    name: str, saved: Callable[[str], Path]
) -> None:
    from vlmkit_onnx.export.refusal import objection

    assert objection(saved_as(name, saved)) is None


@pytest.mark.parametrize("part", ["export", "export_tower"])
def test_the_refusal_comes_before_the_weights_are_read(
    part: str, saved: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlmkit_onnx.export import exporter

    def load(_: Checkpoint) -> None:
        pytest.fail("the weights were read")

    monkeypatch.setattr(exporter, "load", load)
    checkpoint = saved_as("molmo2", saved)
    with pytest.raises(CheckpointError, match="'molmo2' takes images in a way"):
        getattr(exporter, part)(checkpoint, tmp_path / "onnx", "fp32", lambda _: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
@pytest.mark.parametrize("targets", [[1, 2, 2], [1, 1, 2, 2, 2]])
def test_granite_may_have_fewer_spatial_layers_than_projectors_but_not_more(
    saved: Callable[[str], Path], targets: list[int]
) -> None:
    import transformers

    from vlmkit_onnx.export.towers.granite import StackTower

    config = transformers.AutoConfig.from_pretrained(saved("granite4_vision"))
    config.spatial_target_layers = targets
    base = transformers.AutoModel.from_config(config)
    if len(targets) > len(base.spatial_projectors):
        with pytest.raises(
            CheckpointError, match=r"'spatial_target_layers' in config\.json names 5"
        ):
            StackTower(base)
    else:
        assert len(StackTower(base).projectors) == len({0, *targets})
