"""Vision graphs compute the same rows as the families' own code, in any batch."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import zoo
from parity import families
from vlmkit.errors import CheckpointError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.vision.encoder import OnnxVisionEncoder
from vlmkit_onnx.vision.names import FEATURES

pytestmark = pytest.mark.torch

FAMILIES = [name for name in families.EXPORTED if name not in zoo.NAMES_TEXT]
ALWAYS = ("gemma3", "llava", "qwen2_5_vl", "qwen3_vl", "smolvlm")  # the others' exports are slow
SIZES = ((60, 60), (84, 40), (50, 100), (60, 60), (200, 120))
TOLERANCE = 1e-4


class VisionExport(NamedTuple):
    """The model of a family, its graph, and an encoder on the graph."""

    model: Any
    file: Path
    encoder: OnnxVisionEncoder


@pytest.fixture(scope="session")
def vision_export(
    one_thread: None,
    encoders: Any,
    saved: Callable[[str], Path],
    tower: Callable[[str], Path],
) -> Callable[[str], VisionExport]:
    """Return a function from a family to its model and encoder."""
    import transformers

    @functools.cache
    def made(name: str) -> VisionExport:
        auto = transformers.AutoModelForImageTextToText
        model = auto.from_pretrained(saved(name)).eval()
        file = tower(name) / "vision.onnx"
        return VisionExport(model, file, encoders.open(file))

    return made


def slot_of(name: str, model: Any, number: int) -> MediaSlot:
    """Return the slot of an image that the family's processor prepares."""
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "x"}]}
    made = zoo.reference(name, [message], [zoo.picture(number, *SIZES[number])])
    count = int((made["input_ids"] == model.config.image_token_id).sum())
    arrays = {key: np.asarray(made[key]) for key in made if key not in ("input_ids", "labels")}
    return MediaSlot(0, count, b"", arrays, count)


def difference(features: MediaFeatures, expected: dict[str, Any]) -> float:
    rows = {FEATURES: features.embeddings, **features.extra}
    assert rows.keys() == expected.keys()
    return max(float(np.abs(np.asarray(rows[name]) - expected[name]).max()) for name in rows)


def bits(features: MediaFeatures) -> list[bytes]:
    rows = [features.embeddings, *(features.extra[name] for name in sorted(features.extra))]
    return [np.asarray(array).tobytes() for array in rows]


@pytest.mark.parametrize(
    "name",
    [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES],
)
def test_features_equal_those_of_the_family_alone_and_in_a_batch(
    name: str, vision_export: Callable[[str], VisionExport]
) -> None:
    from vlmkit_onnx.export.vision_check import reference

    model, _, encoder = vision_export(name)
    slots = [slot_of(name, model, number) for number in range(len(SIZES))]
    expected = [reference(model, slot.inputs) for slot in slots]
    size = max(float(np.abs(rows[FEATURES]).max()) for rows in expected)

    together = encoder.encode(slots)
    alone = [encoder.encode([slot])[0] for slot in slots]

    worst = max(map(difference, [*together, *alone], [*expected, *expected]))
    assert worst < TOLERANCE * max(size, 1)
    assert [bits(features) for features in alone] == [bits(features) for features in together]


def test_deepstack_rows_are_extras_and_count_as_memory(
    vision_export: Callable[[str], VisionExport],
) -> None:
    model, _, encoder = vision_export("qwen3_vl")
    (features,) = encoder.encode([slot_of("qwen3_vl", model, 1)])

    assert sorted(features.extra) == ["deepstack.0", "deepstack.1", "deepstack.2"]
    assert {array.shape for array in features.extra.values()} == {features.embeddings.shape}
    assert features.num_bytes == 4 * 4 * features.num_tokens * features.embeddings.shape[1]


def test_a_graph_contains_no_paths_of_the_exporting_machine(
    vision_export: Callable[[str], VisionExport],
) -> None:
    content = vision_export("llava").file.read_bytes()
    assert b"site-packages" not in content
    assert b".py" not in content


def test_a_tiled_graph_of_another_exporter_is_fed_by_its_own_names(
    vision_export: Callable[[str], VisionExport], encoders: Any
) -> None:
    model, file, own = vision_export("smolvlm")
    slots = [slot_of("smolvlm", model, number) for number in (0, 2)]
    foreign = encoders.open(file, is_own=False)

    for one, other in zip(foreign.encode(slots), own.encode(slots), strict=True):
        np.testing.assert_allclose(
            np.asarray(one.embeddings), np.asarray(other.embeddings), atol=1e-5
        )


def test_a_graph_that_differs_from_its_model_is_deleted(
    vision_export: Callable[[str], VisionExport],
    encoders: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import copy

    from vlmkit_onnx.export import vision
    from vlmkit_onnx.export.towers.table import tower_of

    def wrong(base: Any) -> Any:
        other = copy.copy(base)
        other._modules = {**base._modules}
        other._modules["connector"] = copy.deepcopy(base.connector)
        for weight in other.connector.parameters():
            weight.data = weight.data * 1.001
        return tower_of(other)

    monkeypatch.setattr(vision, "tower_of", wrong)
    with pytest.raises(CheckpointError, match="does not compute what the model computes"):
        encoders.export(vision_export("smolvlm").model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_exporter_that_assumes_equal_windows_is_detected(
    vision_export: Callable[[str], VisionExport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlmkit_onnx.export.vision_check import VisionCheck
    from vlmkit_onnx.vision import grid

    model, file, _ = vision_export("qwen2_5_vl")
    right = grid.windows

    def equal(height: int, width: int, merge: int, side: int) -> grid.Windows:
        cut = right(height, width, merge, side)
        return cut._replace(visible=np.ones_like(cut.visible))

    check = VisionCheck(model, [slot_of("qwen2_5_vl", model, 1).inputs])
    assert check.refuse_unlike(file, "fp32") < TOLERANCE
    monkeypatch.setattr(grid, "windows", equal)
    with pytest.raises(CheckpointError, match="does not compute what the model computes"):
        check.refuse_unlike(file, "fp32")


def test_a_large_tower_keeps_its_weights_in_a_file_beside_it(
    vision_export: Callable[[str], VisionExport],
    encoders: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vlmkit_onnx.export import vision

    model, _, small = vision_export("smolvlm")
    monkeypatch.setattr(vision, "MAX_INLINE_BYTES", 0)
    large = encoders.export(model, tmp_path)

    names = ["vision.onnx", "vision.onnx.data", "vision_sample.npz"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    slot = slot_of("smolvlm", model, 1)
    one, other = (encoder.encode([slot])[0].embeddings for encoder in (large, small))
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_an_unknown_tower_is_refused(
    saved: Callable[[str], Path], encoders: Any, tmp_path: Path
) -> None:
    import transformers

    model = transformers.AutoModelForImageTextToText.from_pretrained(saved("molmo2"))
    with pytest.raises(CheckpointError, match="'molmo2' cannot be exported"):
        encoders.export(model, tmp_path)


def test_cross_attention_to_images_is_refused_before_the_export(
    saved: Callable[[str], Path], tmp_path: Path
) -> None:
    from vlmkit_onnx.export.exporter import export
    from vlmkit_onnx.export.refusal import objection

    made, stages = Checkpoint("mllama", saved("mllama")), []
    sentence = "model type 'mllama_text_model' has cross-attention to image features"
    assert f"it cannot be exported: {sentence}" in str(objection(made))
    with pytest.raises(CheckpointError, match=sentence) as caught:
        export(made, tmp_path / "out", "fp32", stages.append)
    assert stages == ["reading weights"]
    assert 'engine.use = "torch"' in caught.value.hint


def test_a_text_model_has_no_vision_graph(saved: Callable[[str], Path], tmp_path: Path) -> None:
    import transformers

    from vlmkit_onnx.export.vision import export_vision

    model = transformers.AutoModelForCausalLM.from_pretrained(saved("llama"))
    assert export_vision(model, tmp_path, None, lambda _: None) is None
