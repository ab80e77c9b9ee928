"""Open graphs return memory after large runs and report when memory runs out."""

import mmap
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vlmkit.kit.cores import num_cores
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.sessions.session import (
    SPIN_US,
    is_out_of_memory,
    open_session,
    shrinking_arena,
)
from vlmkit_onnx.settings import ComputeSettings

MIB = 2**20


@pytest.fixture
def widening(tmp_path: Path) -> onnxruntime.InferenceSession:
    """Return an open graph that needs MiB of memory for each input number."""
    return opened(tmp_path, MIB // 4)


def opened(folder: Path, num_columns: int) -> onnxruntime.InferenceSession:
    """Return an open graph that computes many numbers from each input number."""
    width = helper.make_tensor("width", TensorProto.INT64, [2], [1, num_columns])
    graph = helper.make_graph(
        [
            helper.make_node("Expand", ["x", "width"], ["wide"]),
            helper.make_node("Sin", ["wide"], ["bent"]),
            helper.make_node("ReduceMean", ["bent"], ["y"], keepdims=0),
        ],
        "widening",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [width],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "widening.onnx")
    return open_session(folder / "widening.onnx", ComputeSettings(num_threads=1))


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what memory is resident")
def test_a_large_run_returns_its_memory(widening: onnxruntime.InferenceSession) -> None:
    options = shrinking_arena(widening)
    widening.run(None, {"x": np.zeros((1, 1), np.float32)}, options)
    before = resident_bytes()
    widening.run(None, {"x": np.zeros((64, 1), np.float32)}, options)
    assert resident_bytes() - before < 16 * MIB
    widening.run(None, {"x": np.zeros((64, 1), np.float32)})  # control: the run was that large
    assert resident_bytes() - before > 48 * MIB


def test_out_of_memory_is_distinguished_from_other_failures(tmp_path: Path) -> None:
    session = opened(tmp_path, 2**46)  # more than the address space
    one = np.zeros((1, 1), np.float32)
    with pytest.raises(Exception, match="allocate") as caught:
        session.run(None, {"x": one})
    assert is_out_of_memory(caught.value)
    with pytest.raises(Exception, match="rank") as caught:
        session.run(None, {"x": one[0]})
    assert not is_out_of_memory(caught.value)


def resident_bytes() -> int:
    """Return the resident memory of this process, without files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def test_idle_threads_stop_spinning(widening: onnxruntime.InferenceSession) -> None:
    options = widening.get_session_options()
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == str(SPIN_US)
    if sys.platform == "linux":  # the library reads this entry; an unknown one would have no effect
        library = next(
            Path(onnxruntime.__file__).parent.glob("capi/onnxruntime_pybind11_state*.so")
        )
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as code:
            assert code.find(b"session.intra_op.spin_duration_us\0") > 0


@pytest.mark.parametrize(("num_columns", "num_threads"), [(2**10, 1), (2**16 + 2**12, num_cores())])
def test_a_graph_gets_one_thread_if_its_weights_are_small(
    tmp_path: Path, num_columns: int, num_threads: int
) -> None:
    file = tmp_path / "product.onnx"
    weights = np.ones((16, num_columns), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, num_columns])],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, file, save_as_external_data=True, location="product.data", size_threshold=0)
    session = open_session(file, ComputeSettings())
    assert session.get_session_options().intra_op_num_threads == num_threads
    (rows,) = session.run(None, {"x": np.ones((1, 16), np.float32)})
    assert rows.shape == (1, num_columns)
