"""Declarations of an ONNX file; hostile files cause one clear error and cost nothing."""

import os
import tracemalloc
from pathlib import Path

import onnx
import pytest
from hypothesis import given, strategies as st
from onnx import TensorProto, helper

from vlmkit.errors import CheckpointError
from vlmkit_onnx.folder import graph_header, graph_messages
from vlmkit_onnx.folder.graph_header import CachedAttention, PackedWeights, read_header
from vlmkit_onnx.folder.graph_messages import ExternalTensor, TensorInfo

value = helper.make_tensor_value_info


def external(name, location, offset="0", length="16", shape=(4,), **more):
    tensor = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL
    )
    stated = {"location": location, "offset": offset, "length": length, **more}
    for key, text in stated.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def model(nodes=(), initializers=(), functions=(), inputs=(), sparse=()):
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"]), *nodes],
        "graph",
        [value("x", TensorProto.FLOAT16, ["batch", 4, None]), *inputs],
        [value("y", TensorProto.FLOAT16, ["batch", 4, None])],
        list(initializers),
        sparse_initializer=list(sparse),
    )
    return helper.make_model(graph, functions=list(functions))


def save(folder, made):
    file = folder / "model.onnx"
    file.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return file


def test_inputs_and_outputs_have_types_and_shapes(tmp_path):
    header = read_header(save(tmp_path, model()))
    expected = TensorInfo("float16", ("batch", 4, ""))
    assert header.inputs == {"x": expected}
    assert header.outputs == {"y": expected}
    assert header.op_types == {"Identity"}
    assert header.external == ()


def test_the_header_of_real_files_equals_that_of_onnx():
    files = sorted(Path(onnx.__file__).parent.rglob("*.onnx"))
    assert files, "the onnx package carries small models"
    for file in files:
        graph, header = onnx.load(file, load_external_data=False).graph, read_header(file)
        brought = {tensor.name for tensor in graph.initializer}
        assert list(header.inputs) == [i.name for i in graph.input if i.name not in brought]
        assert list(header.outputs) == [output.name for output in graph.output]
        assert header.op_types >= {node.op_type for node in graph.node}
        for stated in graph.input:
            tensor = stated.type.tensor_type
            if stated.name in header.inputs and tensor.HasField("shape"):
                axes = tuple(
                    axis.dim_value if axis.HasField("dim_value") else axis.dim_param
                    for axis in tensor.shape.dim
                )
                assert header.inputs[stated.name].shape == axes


def test_an_initializer_is_no_input(tmp_path):
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [0.5])
    made = model(initializers=[weight], inputs=[value("w", TensorProto.FLOAT, [1])])
    assert list(read_header(save(tmp_path, made)).inputs) == ["x"]


def test_weights_in_branches_functions_attributes_and_sparse_tensors_are_found(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])], "branch", [], [], [external("in_branch", "a")]
    )
    loop = helper.make_graph(
        [helper.make_node("If", ["x"], ["z"], then_branch=branch)], "l", [], []
    )
    function = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Constant", [], ["b"], value=external("in_function", "b"))],
        [helper.make_opsetid("", 21)],
    )
    sparse = onnx.SparseTensorProto(
        values=external("values", "c"), indices=external("indices", "d"), dims=[4]
    )
    nodes = [
        helper.make_node("Loop", [], ["l"], body=loop),
        helper.make_node("Twice", ["x"], ["t"]),
    ]
    made = model(nodes, [external("direct", "e", "64")], [function], sparse=[sparse])
    header = read_header(save(tmp_path, made))
    assert header.op_types == {"Identity", "Loop", "If", "Relu", "Constant", "Twice"}
    assert {tensor.name: tensor.location for tensor in header.external} == {
        "in_branch": "a",
        "in_function": "b",
        "values": "c",
        "indices": "d",
        "direct": "e",
    }
    assert ExternalTensor("direct", "e", 64, 16) in header.external


def test_caching_attention_and_packed_weights_are_described(tmp_path):
    attention = helper.make_node(
        "GroupQueryAttention",
        ["q", "", "", "past.k", "past.v", "lengths", "total"],
        ["o", "present.k", "present.v"],
        domain="com.microsoft",
        do_rotary=1,
        local_window_size=8,
    )
    packed = helper.make_node("MatMulNBits", ["o"], ["p"], bits=4, block_size=128)
    header = read_header(save(tmp_path, model([attention, packed])))
    expected = CachedAttention("past.k", "past.v", "present.k", "present.v", True, 8)
    assert header.attention == (expected,)
    assert header.packed == {PackedWeights(4, 128)}


@pytest.mark.parametrize("content", [b"", b"\0", b"GGUF" * 9, b"{}", b"\xff" * 9, b"\x08\x0a"])
def test_a_file_that_is_not_onnx_is_refused(tmp_path, content):
    with pytest.raises(CheckpointError, match="not a whole ONNX file") as caught:
        read_header(save(tmp_path, content))
    assert str(caught.value) == "'model.onnx' is not a whole ONNX file"
    assert caught.value.hint == "fetch or export the model again"


def test_every_truncation_is_refused(tmp_path):
    whole = model(initializers=[external("w", "a")])
    whole.ClearField("opset_import")  # the fields after the graph are optional
    content = whole.SerializeToString()
    assert read_header(save(tmp_path, content))
    for length in range(len(content)):
        with pytest.raises(CheckpointError):
            read_header(save(tmp_path, content[:length]))


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    for name in ("absent.onnx", ".", "pipe.onnx"):
        with pytest.raises(CheckpointError, match="is missing"):
            read_header(tmp_path / name)


def varint(number):
    encoded = b""
    while number > 127:
        encoded, number = encoded + bytes([number & 127 | 128]), number >> 7
    return encoded + bytes([number])


def part(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


VERSION = b"\x08\x0a"
OUTPUT = part(12, part(1, b"y"))
HOSTILE = {
    "a length beyond the end": VERSION + varint(7 << 3 | 2) + varint(2**40) + OUTPUT,
    "a length beyond 64 bits": VERSION + varint(7 << 3 | 2) + b"\xff" * 9 + b"\x7f" + OUTPUT,
    "a number without end": VERSION + b"\x38" + b"\x80" * 1000,
    "a group": VERSION + part(7, OUTPUT) + b"\x0b\x0c",
    "a field without number": VERSION + part(7, OUTPUT) + b"\x00\x00",
    "two graphs": VERSION + part(7, OUTPUT) + part(7, part(5, part(13, b""))),
    "a graph that is a number": VERSION + b"\x38\x01",
    "no outputs": VERSION + part(7, b""),
    "no version": part(7, OUTPUT),
    "a name that is not text": VERSION + part(7, part(12, part(1, b"\xff\xfe"))),
    "a name of a megabyte": VERSION + part(7, part(12, part(1, b"y" * 2**20))),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_malformed_file_is_refused(tmp_path, content):
    with pytest.raises(CheckpointError, match="is not a whole ONNX file"):
        read_header(save(tmp_path, content))


def test_a_thousand_nested_graphs_are_refused(tmp_path):
    graph = OUTPUT
    for _ in range(1000):
        graph = part(1, part(5, part(6, graph)))
    with pytest.raises(CheckpointError, match="is not a whole ONNX file"):
        read_header(save(tmp_path, VERSION + part(7, graph + OUTPUT)))


def test_a_file_of_endless_fields_ends_early(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_header, "MAX_FIELDS", 1000)
    assert read_header(save(tmp_path, VERSION + part(7, OUTPUT) + b"\x28\x01" * 900))
    with pytest.raises(CheckpointError):
        read_header(save(tmp_path, VERSION + part(7, OUTPUT) + b"\x28\x01" * 1001))


@pytest.mark.parametrize(
    "tensor",
    [
        external("w", "a", offset="-1"),
        external("w", "a", offset="1e3"),
        external("w", "a", offset="9" * 30),
        external("w", "a", length="17"),
        external("w", "a", length="99999999999999"),
        external("w", "a", shape=(-4,)),
        external("w", "a", shape=(1,) * 40),
        external("w", "a", prepacked_0="blob|0;1"),
        TensorProto(
            name="w", data_type=99, dims=[4], external_data=external("w", "a").external_data
        ),
    ],
    ids=lambda tensor: str(tensor).replace("\n", " ")[-40:],
)
def test_external_data_without_a_clear_location_is_refused(tmp_path, tensor):
    with pytest.raises(CheckpointError, match="is not a whole ONNX file"):
        read_header(save(tmp_path, model(initializers=[tensor])))


def test_external_data_that_is_stated_twice_is_refused(tmp_path):
    tensor = external("w", "a")
    tensor.external_data.add(key="location", value="b")
    with pytest.raises(CheckpointError, match="is not a whole ONNX file"):
        read_header(save(tmp_path, model(initializers=[tensor])))


def test_a_file_of_endless_weights_ends_early(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_messages, "MAX_RECORDS", 100)
    weights = [TensorProto(name=str(number)) for number in range(99)]
    assert read_header(save(tmp_path, model(initializers=weights[:90])))
    with pytest.raises(CheckpointError):
        read_header(save(tmp_path, model(initializers=weights)))


def test_a_huge_shape_costs_no_memory(tmp_path):
    file = save(tmp_path, model(initializers=[external("w", "a", length="0", shape=(2**40,) * 8)]))
    tracemalloc.start()
    read_header(file)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.posix
def test_gigabytes_of_weights_in_the_file_are_skipped(tmp_path):
    num_bytes, name = 3 * 2**30, part(8, b"w")
    weights = name + varint(9 << 3 | 2) + varint(num_bytes)
    tensor = varint(5 << 3 | 2) + varint(len(weights) + num_bytes) + weights
    graph = varint(7 << 3 | 2) + varint(len(tensor) + num_bytes + len(OUTPUT))
    file = save(tmp_path, VERSION + graph + tensor)
    with file.open("r+b") as opened:
        opened.seek(num_bytes, os.SEEK_END)  # a sparse file, which needs no disk space
        opened.write(OUTPUT)
    tracemalloc.start()
    assert list(read_header(file).outputs) == ["y"]
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@given(content=st.binary(max_size=400))
def test_random_bytes_are_read_or_refused(tmp_path, content):
    survives(save(tmp_path, content))


@given(data=st.data())
def test_random_changes_of_a_real_file_are_read_or_refused(tmp_path, data):
    branch = helper.make_graph([], "branch", [], [], [external("in_branch", "a")])
    nodes = [helper.make_node("If", ["x"], ["z"], then_branch=branch)]
    content = bytearray(model(nodes, [external("w", "b")]).SerializeToString())
    places = st.integers(0, len(content) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        content[place] = byte
    start = data.draw(places)
    stop = data.draw(st.integers(start, min(len(content), start + 9)))
    content[start:stop] = data.draw(st.binary(max_size=12))
    survives(save(tmp_path, bytes(content)))


def survives(file):
    tracemalloc.start()
    try:
        read_header(file)
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**22
