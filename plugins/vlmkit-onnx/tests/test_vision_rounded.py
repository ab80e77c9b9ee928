"""8-bit vision towers: the allowed effects of rounding."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx_ir = pytest.importorskip("onnx_ir")
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from vlmkit.errors import CheckpointError  # noqa: E402
from vlmkit.interfaces.prompt import MediaSlot  # noqa: E402
from vlmkit_onnx.export import vision, vision_check  # noqa: E402
from vlmkit_onnx.export.tower_quantize import LAYERS, quantize  # noqa: E402
from vlmkit_onnx.export.vision_check import VisionCheck  # noqa: E402
from vlmkit_onnx.folder.layout import own_tower  # noqa: E402
from vlmkit_onnx.self_checks import export_sample as kept  # noqa: E402
from vlmkit_onnx.sessions import products  # noqa: E402
from vlmkit_onnx.vision.names import FEATURES  # noqa: E402

FAMILIES = ("llava", "mistral3", "qwen2_5_vl", "smolvlm")  # tiles, patches, windows, many tiles
Rounded = Callable[[str], Path]


@pytest.fixture(scope="session")
def rounded(tower: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Rounded:
    """Return a function from a family to its 8-bit tower and two images."""

    @functools.cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp(f"{name}-rounded")
        graph = onnx_ir.load(tower(name) / vision.FILE)
        assert quantize(graph) > 0
        onnx_ir.save(graph, folder / vision.FILE)
        (folder / kept.FILE).write_bytes((tower(name) / kept.FILE).read_bytes())
        return folder / vision.FILE

    return made


@pytest.fixture(params=[products.SIGNED, products.UNSIGNED], ids=lambda form: form.name)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> products.Form:
    """Make sessions use each kernel for 8-bit products that is exact on this CPU."""
    taken: products.Form = request.param
    if not products.are_exact(taken):
        pytest.skip(f"this CPU saturates sums of {taken.name}")
    monkeypatch.setattr(products, "form", lambda: taken)
    return taken


def slots_of(file: Path) -> Iterator[tuple[MediaSlot, dict[str, Any]]]:
    """Yield the two sample images of a graph and darker copies, each with its rows."""
    for arrays, rows in kept._images(file.with_name(kept.FILE)):
        count = len(rows[FEATURES])
        for share in (1, 0.5):
            dimmed = {**arrays, "pixel_values": arrays["pixel_values"] * np.float32(share)}
            yield MediaSlot(0, count, b"", dimmed, count), dict(rows) if share == 1 else {}


@pytest.mark.parametrize("name", FAMILIES)
def test_features_do_not_depend_on_the_batch_with_any_kernels(
    name: str, rounded: Rounded, encoders: Any, form: products.Form
) -> None:
    encoder = encoders.open(rounded(name))
    slots = [slot for slot, _ in slots_of(encoder._file)]
    together = encoder.encode([*slots, *slots[::-1]])
    both = together[: len(slots)], together[: len(slots) - 1 : -1]
    for slot, one, other in zip(slots, *both, strict=True):
        (alone,) = encoder.encode([slot])
        for features in (one, other):
            np.testing.assert_array_equal(
                np.asarray(features.embeddings), np.asarray(alone.embeddings)
            )


@pytest.mark.parametrize("name", FAMILIES)
def test_features_are_rounded_and_near_the_exact_ones(
    name: str, rounded: Rounded, encoders: Any
) -> None:
    encoder = encoders.open(rounded(name))
    for slot, rows in slots_of(encoder._file):
        if rows:
            (features,) = encoder.encode([slot])
            off = kept.difference({FEATURES: features.embeddings, **features.extra}, rows, "w8a8")
            assert 1e-3 < off < kept.BOUNDS["w8a8"].at_export
    encoder.refuse_unlike_export()


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_norms_and_the_patch_embedding_stay_in_float32(
    name: str, rounded: Rounded, tower: Callable[[str], Path]
) -> None:
    before, after = (
        list(onnx_ir.load(file).graph) for file in (tower(name) / vision.FILE, rounded(name))
    )

    def count(nodes: list[Any], *ends: str) -> int:
        return sum(node.op_type.endswith(ends) for node in nodes)

    assert count(before, "Attention") == count(after, "Attention") > 0
    assert count(before, "LayerNormalization") == count(after, "LayerNormalization") > 0
    left = [node for node in after if node.op_type in (*LAYERS, "Conv")]
    (first,) = [node for node in left if reads_pixels(node)]
    assert not [n for n in left if n is not first and n.inputs[1].const_value is not None]


def reads_pixels(node: Any) -> bool:
    value = node.inputs[0]
    while (maker := value.producer()) is not None:
        if maker.op_type not in ("Reshape", "Transpose", "Unsqueeze"):
            return False
        value = maker.inputs[0]
    return bool(value.name == "pixel_values")


def test_the_precision_of_a_graph_is_read_from_the_graph(
    rounded: Rounded, tower: Callable[[str], Path]
) -> None:
    assert own_tower(rounded("llava")).precision == "w8a8"
    assert own_tower(tower("llava") / vision.FILE).precision == "fp32"


def test_sums_and_norms_are_split_and_patch_convolutions_are_products(
    tower: Callable[[str], Path],
) -> None:
    nodes = [node.op_type for node in onnx_ir.load(tower("qwen2_5_vl") / vision.FILE).graph]
    assert "Conv" not in nodes
    nodes = [node.op_type for node in onnx_ir.load(tower("smolvlm") / vision.FILE).graph]
    assert "SkipLayerNormalization" not in nodes
    assert "Split" not in nodes


def test_a_tower_with_too_large_rounding_is_refused_if_8_bits_were_requested(
    saved: Callable[[str], Path],
    tower: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import transformers

    model = transformers.AutoModelForImageTextToText.from_pretrained(saved("llava")).eval()
    images = kept._images(tower("llava") / kept.FILE)
    checked = VisionCheck(model, [arrays for arrays, _ in images])

    def outcome(precision: Any) -> str:
        graph = onnx_ir.load(tower("llava") / vision.FILE)
        return vision._rounded(graph, tmp_path, checked, precision)

    assert outcome("w8a8") == outcome(None) == "w8a8"
    for file in tmp_path.iterdir():
        file.unlink()
    strict = {**kept.BOUNDS, "w8a8": kept.Bound(1e-3, 1e-3)}
    monkeypatch.setattr(vision_check, "BOUNDS", strict)
    with pytest.raises(CheckpointError, match=r"off, where 0\.001 is the most"):
        outcome("w8a8")
    assert "stays in float32" not in caplog.text
    assert outcome(None) == "fp32"
    assert "stays in float32" in caplog.text
    assert list(tmp_path.iterdir()) == []
