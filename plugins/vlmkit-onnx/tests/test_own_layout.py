"""Folders of vlmkit's exporter: a broken folder is refused in one sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.build import build_encoder, build_engine
from vlmkit_onnx.folder import refusal
from vlmkit_onnx.settings import EncoderSettings, EngineSettings

vlmkit_demo = pytest.importorskip("vlmkit_demo")
DEMO = Path(vlmkit_demo.__file__).with_name("checkpoint")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the packaged ONNX model that a test may break."""
    made = tmp_path / "model"
    shutil.copytree(DEMO, made, ignore=shutil.ignore_patterns("model.safetensors"))
    return made


def engine_of(folder: Path, **settings: Any) -> Any:
    few = {"num_threads": 1, "max_sequences": 2, **settings}
    return build_engine(BuildContext("", Checkpoint("m", folder), EngineSettings(**few)))


def encoder_of(folder: Path) -> Any:
    return build_encoder(BuildContext("", Checkpoint("m", folder), EncoderSettings(num_threads=1)))


def truncated(file: str, share: float) -> Callable[[Path], None]:
    """Return a function that truncates a file to a share of its size."""

    def change(folder: Path) -> None:
        path = folder / file
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return change


def with_field(**changes: Any) -> Callable[[Path], None]:
    """Return a function that changes the manifest; None drops a field."""

    def change(folder: Path) -> None:
        path = folder / "vlmkit_onnx.json"
        stated = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in stated.items() if v is not None}))

    return change


def drop(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def linked(file: str, target: str) -> Callable[[Path], None]:
    """Return a function that replaces a file by a link to another place."""

    def change(folder: Path) -> None:
        outside = folder.parent / target
        shutil.move(folder / file, outside)
        (folder / file).symlink_to(outside)

    return change


def other_graph(folder: Path) -> None:
    shutil.copy(folder / "vision.onnx", folder / "decoder.onnx")


def narrow_table(folder: Path) -> None:
    path = folder / "embeddings.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    rows, width = header["weight"]["shape"]
    header["weight"]["shape"] = [rows * 2, width // 2]
    written = json.dumps(header).encode()
    path.write_bytes(len(written).to_bytes(8, "little") + written + content[8 + length :])


BROKEN = {
    "the decoder is cut": (truncated("decoder.onnx", 0.5), "'decoder.onnx'"),
    "the decoder is empty": (truncated("decoder.onnx", 0), "'decoder.onnx'"),
    "the decoder's weights are cut": (truncated("decoder.onnx.data", 0.9), "'decoder.onnx.data'"),
    "the decoder's weights are missing": (drop("decoder.onnx.data"), "'decoder.onnx.data'"),
    "the decoder's weights lie elsewhere": (linked("decoder.onnx.data", "w"), "decoder.onnx.data"),
    "the decoder is missing": (drop("decoder.onnx"), "'decoder.onnx' is missing"),
    "the decoder is another graph": (other_graph, "'decoder.onnx' has no input"),
    "the table is cut": (truncated("embeddings.safetensors", 0.5), "'embeddings.safetensors'"),
    "the table is missing": (drop("embeddings.safetensors"), "'embeddings.safetensors'"),
    "the table has another width": (narrow_table, "rows of 96 numbers, and the decoder takes 192"),
    "the manifest is cut": (
        truncated("vlmkit_onnx.json", 0.5),
        "'vlmkit_onnx.json' is not a manifest",
    ),
    "the manifest is of another version": (with_field(format=2), "is not a manifest of format 1"),
    "the manifest has a field of tomorrow": (with_field(more=1), "is not a manifest of format 1"),
    "the manifest leads elsewhere": (with_field(decoder="../decoder.onnx"), "is not a manifest"),
    "the manifest names a file with a line break": (
        with_field(decoder="d.onnx\n"),
        "is not a manifest",
    ),
    "the manifest is of another family": (with_field(model_type="llama"), "is of type 'llama'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_in_one_sentence(name: str, folder: Path) -> None:
    change, said = BROKEN[name]
    change(folder)
    with pytest.raises(CheckpointError) as caught:
        engine_of(folder)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value).partition("\nhint")[0]


def test_a_broken_tower_is_refused_by_the_encoder_only(folder: Path) -> None:
    truncated("vision.onnx", 0.5)(folder)
    with pytest.raises(CheckpointError, match=r"'vision\.onnx'"):
        encoder_of(folder)
    engine_of(folder).close()


def test_priority_is_high_with_graphs_and_low_without(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    assert refusal.engine_cannot_serve(Checkpoint("m", folder)) is None
    assert refusal.priority(Checkpoint("m", folder)) > 10
    assert refusal.priority(Checkpoint("m", empty)) < 10
    assert refusal.engine_cannot_serve(Checkpoint("m", empty)) == (
        "there are no ONNX graphs, and there are no *.safetensors weights"
    )


def test_a_tiny_cache_is_refused_with_the_bytes_of_a_token(
    folder: Path,
) -> None:
    with pytest.raises(ConfigError, match="the cache has room for 8 tokens, and 32 are the least"):
        engine_of(folder, cache_tokens=8)


def test_a_device_that_cannot_compute_the_graph_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="attention computes in half precision"):
        engine_of(folder, device="cuda")


def test_two_engines_of_one_folder_do_not_share_a_cache(folder: Path) -> None:
    first, second = engine_of(folder), engine_of(folder)
    first.close()
    assert second.limits.capacity_tokens > 0
    second.close()
