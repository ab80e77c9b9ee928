"""External data of a graph: only what ONNX Runtime accepts; the rest is refused in one sentence."""

import shutil

import numpy as np
import pytest
from hypothesis import given, strategies as st
from onnx import TensorProto, helper

from vlmkit.errors import CheckpointError
from vlmkit_onnx.folder import external_data
from vlmkit_onnx.sessions.runtime import onnxruntime

pytestmark = pytest.mark.posix

NUMBERS = np.arange(4, dtype=np.float32)


def graph(location, offset=0, length=16):
    """Return a model that adds four numbers from another file."""
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )
    stated = {"location": location, "offset": str(offset), "length": str(length)}
    for key, text in stated.items():
        tensor.external_data.add(key=key, value=text)
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "graph",
        [value("x", TensorProto.FLOAT, [4])],
        [value("y", TensorProto.FLOAT, [4])],
        [tensor],
    )
    opset = helper.make_opsetid("", 21)
    return helper.make_model(made, opset_imports=[opset], ir_version=10).SerializeToString()


def onnxruntime_accepts(file):
    """Return whether ONNX Runtime itself accepts a graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - its exceptions have no common parent
        return False
    (result,) = session.run(None, {"x": np.zeros(4, np.float32)})
    return np.array_equal(result, NUMBERS)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    NUMBERS.tofile(made / "weights")
    NUMBERS.tofile(tmp_path / "secret")
    return made


@pytest.fixture
def hub(tmp_path):
    """Return a snapshot in a hub cache, whose files are links to blobs."""
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "main" / "onnx"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "aa").write_bytes(graph("model.onnx_data"))
    NUMBERS.tofile(repository / "blobs" / "bb")
    (snapshot / "model.onnx").symlink_to("../../../blobs/aa")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/bb")
    return snapshot


def write(folder, content):
    file = folder / "model.onnx"
    file.write_bytes(content)
    return file


def test_external_data_in_the_folder_and_below_is_accepted(folder):
    file = write(folder, graph("weights"))
    external_data.check(file, folder)
    assert onnxruntime_accepts(file)
    (folder / "part").mkdir()
    (folder / "weights").rename(folder / "part" / "one: 1*2")
    file = write(folder, graph("part/one: 1*2"))
    external_data.check(file, folder)
    assert onnxruntime_accepts(file)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_snapshot_of_a_hub_cache_may_link_to_its_blobs(hub, depth):
    root = hub if depth == 0 else hub.parent
    external_data.check(hub / "model.onnx", root)
    assert onnxruntime_accepts(hub / "model.onnx")


def test_a_snapshot_may_not_link_to_another_repository(hub, tmp_path):
    other = tmp_path / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    shutil.copy(hub / "model.onnx_data", other / "bb")
    (hub / "model.onnx_data").unlink()
    (hub / "model.onnx_data").symlink_to(other / "bb")
    with pytest.raises(CheckpointError, match="leads to a file outside the model's folder"):
        external_data.check(hub / "model.onnx", hub)


def test_a_linked_blobs_folder_is_refused(folder, tmp_path):
    snapshot = folder / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (folder / "blobs").symlink_to(tmp_path)
    (snapshot / "model.onnx").write_bytes(graph("weights"))
    (snapshot / "weights").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="leads to a file outside the model's folder"):
        external_data.check(snapshot / "model.onnx", snapshot)


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "part/../../secret",
        "./weights",
        "part//weights",
        "",
        "..",
        "*/_ORT_MEM_ADDR_/*",
        "weights\0",
        "..\\secret",
        "weights\n",
    ],
)
def test_a_location_other_than_a_plain_path_is_refused(folder, location):
    file = write(folder, graph(location))
    with pytest.raises(CheckpointError, match=r"^'model.onnx' reads .* is not a plain path"):
        external_data.check(file, folder)


@given(location=st.text(alphabet="./\\ablink*:~ %\0", max_size=14))
def test_accepted_external_data_is_in_the_folder(folder, tmp_path, location):
    (folder / "a").mkdir(exist_ok=True)
    for place in (folder / "b", folder / "a" / "b"):
        NUMBERS.tofile(place)
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to(tmp_path)
        (folder / "a" / "link").symlink_to("../b")
        NUMBERS.tofile(tmp_path / "b")
    try:
        external_data.check(write(folder, graph(location)), folder)
    except CheckpointError:
        return
    assert (folder / location).resolve() in (folder / "b", folder / "a" / "b")
    assert onnxruntime_accepts(folder / "model.onnx")


def test_an_absolute_path_is_refused_even_into_the_folder(folder):
    file = write(folder, graph(str(folder / "weights")))
    with pytest.raises(CheckpointError, match="is not a plain path inside its folder"):
        external_data.check(file, folder)
    assert not onnxruntime_accepts(file)


def test_a_link_to_outside_is_refused(folder, tmp_path):
    (folder / "link").symlink_to(tmp_path / "secret")
    file = write(folder, graph("link"))
    with pytest.raises(CheckpointError) as caught:
        external_data.check(file, folder)
    assert str(caught.value) == (
        "'link', which 'model.onnx' reads, leads to a file outside the model's folder"
    )
    assert caught.value.hint == "copy the file into the folder in place of the link"
    assert not onnxruntime_accepts(file)


def test_a_linked_folder_to_outside_is_refused(folder, tmp_path):
    (folder / "part").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="leads to a file outside"):
        external_data.check(write(folder, graph("part/secret")), folder)


def test_a_graph_that_is_itself_a_link_to_outside_is_refused(folder, tmp_path):
    (tmp_path / "other.onnx").write_bytes(graph("secret"))
    (folder / "model.onnx").symlink_to(tmp_path / "other.onnx")
    with pytest.raises(CheckpointError, match=r"^'model.onnx' leads to a file outside"):
        external_data.check(folder / "model.onnx", folder)


def test_a_link_within_the_model_that_onnxruntime_would_refuse_is_refused(folder):
    (folder / "onnx").mkdir()
    (folder / "onnx" / "link").symlink_to(folder / "weights")
    file = write(folder / "onnx", graph("link"))
    with pytest.raises(CheckpointError, match="leads to a file outside"):
        external_data.check(file, folder)
    assert not onnxruntime_accepts(file)


@pytest.mark.parametrize("location", ["absent", "part", "x" * 4000, "loop", "weights/below"])
def test_missing_external_data_is_refused(folder, location):
    (folder / "part").mkdir()
    (folder / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError, match="reads, is missing"):
        external_data.check(write(folder, graph(location)), folder)


@pytest.mark.parametrize(("offset", "wanted"), [(1, 17), (16, 32), (2**62, 2**62 + 16)])
def test_truncated_external_data_is_refused(folder, offset, wanted):
    file = write(folder, graph("weights", offset))
    with pytest.raises(CheckpointError) as caught:
        external_data.check(file, folder)
    assert str(caught.value) == f"'model.onnx' reads {wanted} bytes of 'weights', which has 16"
    assert not onnxruntime_accepts(file)
