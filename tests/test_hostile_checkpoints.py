"""Hostile files of weights and graphs, made to break the code that loads them.

Each file is loaded in a process with limits. It loads, or one error of vlmkit names the file. There
is no traceback, signal or hang, and no memory is allocated for sizes that only a header states.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

pytest.importorskip("onnxruntime")
import vlmkit_demo.plugin

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc")

DEMO = Path(vlmkit_demo.plugin.__file__).with_name("checkpoint")
PROGRAM = Path(__file__).with_name("hostile_checkpoints.py")
ONNX = {
    "modules": [
        "onnxruntime",
        "tokenizers",
        "vlmkit",
        "vlmkit_onnx.build",
        "vlmkit_hf.text_side.tokenizer",
    ],
    "sections": {"engine": {"use": "onnx"}, "media_encoder": {"use": "onnx"}},
}
TORCH = {
    "modules": [
        "torch",
        "transformers",
        "vlmkit",
        "vlmkit_torch.engine.torch_engine",
        "vlmkit_hf.text_side.tokenizer",
    ],
    "sections": {"engine": {"use": "torch"}, "media_encoder": {"use": "torch"}},
}
GRAPHS = ("decoder.onnx", "vision.onnx")
MAX_CPU_S = 20.0  # a whole demo model takes a tenth
MAX_PEAK_BYTES = 1536 * 2**20
BLAMING_A_PLUGIN = ("check failed", "could not be built", "is a fault of")
FEWER = settings(
    max_examples=max(20, settings().max_examples // 20),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Loader:
    """Loads folders in processes of their own.

    Args:
        how: modules to import first, and the sections of the config.
    """

    def __init__(self, how: dict[str, Any]) -> None:
        environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(how)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def load(self, folder: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def onnx():
    loader = Loader(ONNX)
    yield loader
    loader.close()


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("torch")
    loader = Loader(TORCH)
    yield loader
    loader.close()


def copy_of_demo(folder: Path, *, without: str = "", **changed: bytes) -> Path:
    """Write the packaged model with other contents of some files."""
    folder.mkdir(exist_ok=True)
    for file in DEMO.iterdir():
        path = folder / file.name
        if without and file.match(without):
            continue
        if file.name in changed:
            path.write_bytes(changed[file.name])
        elif not path.exists():
            shutil.copyfile(file, path)
    return folder


def assert_loaded_or_refused(found: dict[str, Any], *names: str) -> None:
    """Expect an answer, or one error that names one of some files."""
    assert not found["signal"], f"signal {found['signal']}"
    assert found["is_expected"], found["message"]
    assert found["cpu_s"] < MAX_CPU_S
    assert found["peak_bytes"] < MAX_PEAK_BYTES
    if found["kind"]:
        assert any(name in found["message"] for name in names), found["message"]
        assert "Traceback" not in found["message"]
        assert not any(words in found["message"] for words in BLAMING_A_PLUGIN), found["message"]
        assert "\n" not in found["message"]


def assert_refused(found: dict[str, Any], *names: str) -> None:
    assert found["kind"], "it was loaded"
    assert_loaded_or_refused(found, *names)


def test_the_unchanged_model_loads_within_the_limits(onnx, torch, tmp_path):
    whole = copy_of_demo(tmp_path / "whole")
    for loader in (onnx, torch):
        found = loader.load(whole)
        assert (found["kind"], found["signal"]) == ("", 0), found


# Bytes of a graph.


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def tensor(shape: list[int], kind: int = 1, *, raw: bytes = b"", more: bytes = b"") -> bytes:
    dims = b"".join(field(1, axis) for axis in shape)
    return dims + field(2, kind) + field(8, b"w") + (field(9, raw) if raw else b"") + more


def graph(initializer: bytes = b"", nodes: bytes = b"", *, op: bytes = b"Identity") -> bytes:
    """An ONNX file of one operator."""
    node = field(1, b"w" if initializer else b"x") + field(2, b"y") + field(4, op)
    shape = field(1, field(1, field(1, 1) + field(2, field(1, field(1, 1)))))
    value = lambda name: field(1, name) + field(2, shape)  # noqa: E731
    body = field(1, node) + nodes + field(2, b"g")
    body += field(5, initializer) if initializer else field(11, value(b"x"))
    body += field(12, value(b"y"))
    return field(1, 8) + field(8, field(1, b"") + field(2, 17)) + field(7, body)


def nested(levels: int) -> bytes:
    """A node whose attribute is a graph with such a node, and so on."""
    inner = b""
    for _ in range(levels):
        inner = field(1, field(4, b"If") + field(5, field(1, b"a") + field(6, inner)))
    return inner


def external(location: bytes, offset: int = 0) -> bytes:
    entries = {b"location": location, b"offset": str(offset).encode()}
    stated = b"".join(field(13, field(1, key) + field(2, value)) for key, value in entries.items())
    return stated + field(14, 1)


GRAPH_FILES = {
    "empty": b"",
    "zeros": bytes(4096),
    "GGUF": b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63) + b"\xff" * 4096,
    "safetensors": struct.pack("<Q", 2) + b"{}",
    "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "no end": b"\x3a" + b"\xff" * 10_000,
    "of one operator": graph(),
    "of an unknown operator": graph(op=b"Nothing"),
    "2**62 numbers": graph(tensor([2**31, 2**31], raw=b"\0" * 16)),
    "2**62 numbers without bytes": graph(tensor([2**31, 2**31])),
    "2**40 numbers in few bytes": graph(tensor([2**40], raw=b"\0" * 16)),
    "negative axis": graph(tensor([-1 & (2**64 - 1)], raw=b"\0" * 4)),
    "unknown element type": graph(tensor([1], kind=99, raw=b"\0" * 4)),
    "/etc/passwd": graph(tensor([8], more=external(b"/etc/passwd"))),
    "../": graph(tensor([8], more=external(b"../../../etc/passwd"))),
    "address in memory": graph(tensor([8], more=external(b"*/_ORT_MEM_ADDR_/*", 4096))),
    "device": graph(tensor([2**34], more=external(b"/dev/zero"))),
    "2**40 external bytes": graph(tensor([2**38], more=external(b"decoder.onnx.data"))),
    "graphs in graphs": graph(nodes=nested(200)),
    "many operators": graph(nodes=field(1, field(4, b"Identity")) * 300_000),
}


@pytest.mark.parametrize("content", GRAPH_FILES)
@pytest.mark.parametrize("file", GRAPHS)
def test_a_file_that_is_not_a_graph_of_the_model_is_refused_by_name(onnx, tmp_path, file, content):
    folder = copy_of_demo(tmp_path / "model", **{file: GRAPH_FILES[content]})
    assert_refused(onnx.load(folder), file)


MUTATION = st.tuples(
    st.sampled_from(["flip", "cut", "double", "zero", "grow"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 255),
)


def mutated(content: bytes, how: tuple[str, float, int], num_bytes: int) -> bytes:
    """Change a file within its first bytes."""
    kind, place, value = how
    at = int(place * min(num_bytes, len(content)))
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ value]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "double":
        return content[: at + value] + content[at:]
    if kind == "zero":
        return content[:at] + bytes(value) + content[at + value :]
    return content[:at] + b"\xff" * value + content[at:]


@FEWER
@given(file=st.sampled_from(GRAPHS), how=st.lists(MUTATION, min_size=1, max_size=3))
def test_a_graph_with_wrong_bytes_loads_or_is_refused_by_name(onnx, tmp_path_factory, file, how):
    content = (DEMO / file).read_bytes()
    for each in how:
        content = mutated(content, each, 60_000)
    folder = tmp_path_factory.mktemp("graphs") / "model"
    found = onnx.load(copy_of_demo(folder, **{file: content}))
    shutil.rmtree(folder)
    assert_loaded_or_refused(found, file, "'model'", str(folder))


# Headers of safetensors files.

WEIGHTS = "model.safetensors"


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(**changed: Any) -> bytes:
    """A file with one tensor, of which something is not as it should be."""
    facts = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changed
    return safetensors({"w": facts}, bytes(4))


HEADERS = {
    "empty": b"",
    "seven bytes": bytes(7),
    "of no length": safetensors(b""),
    "length 2**64 - 1": safetensors(b"{}", length=2**64 - 1),
    "length 10**8": safetensors(b"{}", length=10**8),
    "longer than the file": safetensors(b"{}", length=99),
    "no JSON": safetensors(b"{" * 100),
    "no object": safetensors(b"[1, 2]"),
    "no UTF-8": safetensors(b'{"\xff": 1}'),
    "deep": safetensors(b'{"w":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "no tensors": safetensors({}),
    "no facts": safetensors({"w": 1}),
    "unknown dtype": one(dtype="F7"),
    "dtype of another type": one(dtype=[1]),
    "negative axis": one(shape=[-1]),
    "fractional axis": one(shape=[0.5]),
    "text for an axis": one(shape=["1"]),
    "2**62 numbers": one(shape=[2**31, 2**31]),
    "2**62 numbers, offsets that fit": one(shape=[2**31, 2**31], data_offsets=[0, 2**64]),
    "axes that wrap": one(shape=[2**32, 2**32]),
    "large axes": safetensors(
        b'{"w":{"dtype":"F32","shape":['
        + b",".join([b"9" * 4000] * 2000)
        + b'],"data_offsets":[0,4]}}',
        bytes(4),
    ),
    "an axis of too many digits": safetensors(
        b'{"w":{"dtype":"F32","shape":[' + b"9" * 100_000 + b'],"data_offsets":[0,4]}}', bytes(4)
    ),
    "offsets beyond the end": one(data_offsets=[0, 2**40]),
    "offsets the wrong way round": one(data_offsets=[4, 0]),
    "negative offsets": one(data_offsets=[-4, 0]),
    "one offset": one(data_offsets=[0]),
    "offsets of another type": one(data_offsets="04"),
    "tensors on one another": safetensors(
        {n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}, bytes(4)
    ),
    "a hole": safetensors({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, bytes(8)),
    "many tensors": safetensors(
        {
            str(n): {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]}
            for n in range(50_000)
        },
        bytes(200_000),
    ),
    "GGUF": GRAPH_FILES["GGUF"],
    "a pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
}


@pytest.mark.parametrize("content", HEADERS)
def test_a_file_that_is_not_safetensors_of_the_model_is_refused_by_name(torch, tmp_path, content):
    folder = copy_of_demo(tmp_path / "model", without="*onnx*", **{WEIGHTS: HEADERS[content]})
    assert_refused(torch.load(folder), WEIGHTS, "'model'", str(folder))


@pytest.mark.parametrize(
    "content", ["empty", "deep", "no tensors", "2**62 numbers", "large axes", "unknown dtype"]
)
def test_an_invalid_table_of_embeddings_is_refused_by_name(onnx, tmp_path, content):
    name = "embeddings.safetensors"
    folder = copy_of_demo(tmp_path / "model", **{name: HEADERS[content]})
    assert_refused(onnx.load(folder), name)


@pytest.mark.parametrize(
    "content", ["deep", "large axes", "an axis of too many digits", "no UTF-8", "2**62 numbers"]
)
def test_a_command_prints_one_error_for_a_hostile_file(tmp_path, content):
    """``vlmkit models info`` reads headers; it answers within seconds."""
    folder = copy_of_demo(tmp_path / "model", without="*onnx*", **{WEIGHTS: HEADERS[content]})
    command = [sys.executable, "-m", "vlmkit", "models", "info", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)
    if done.returncode:
        assert done.stderr.startswith("error: ")
        assert WEIGHTS in done.stderr


@FEWER
@given(how=st.lists(MUTATION, min_size=1, max_size=3))
@example(how=[("flip", 0.0, 255)])
def test_a_safetensors_file_with_wrong_bytes_loads_or_is_refused_by_name(
    torch, tmp_path_factory, how
):
    content = (DEMO / WEIGHTS).read_bytes()
    for each in how:
        content = mutated(content, each, 12_000)
    folder = tmp_path_factory.mktemp("weights") / "model"
    found = torch.load(copy_of_demo(folder, without="*onnx*", **{WEIGHTS: content}))
    shutil.rmtree(folder)
    assert_loaded_or_refused(found, WEIGHTS, "'model'", str(folder))


INDEXES = {
    "another folder's file": {"weight_map": {"w": "../../etc/passwd"}},
    "an absent file": {"weight_map": {"w": "absent.safetensors"}},
    "a device": {"weight_map": {"w": "/dev/zero"}},
    "no names": {"weight_map": {"w": 5}},
    "no map": {"weight_map": [1]},
    "nothing": {"weight_map": {}},
    "itself": {"weight_map": {"w": "model.safetensors.index.json"}},
}


@pytest.mark.parametrize("content", INDEXES)
def test_an_index_that_names_other_than_weight_files_is_refused(torch, tmp_path, content):
    folder = copy_of_demo(tmp_path / "model", without="*onnx*")
    (folder / "model.safetensors.index.json").write_text(json.dumps(INDEXES[content]))
    assert_refused(torch.load(folder), "model.safetensors.index.json", "absent.safetensors")


# GGUF.


@pytest.mark.parametrize("named", ["model.gguf", "model-00001-of-00002.gguf"])
@pytest.mark.parametrize("loader", ["onnx", "torch"])
def test_a_folder_of_gguf_is_refused_by_name_and_not_read(request, tmp_path, named, loader):
    folder = copy_of_demo(tmp_path / "model", without="*.onnx*")
    (folder / WEIGHTS).unlink()
    (folder / "embeddings.safetensors").unlink(missing_ok=True)
    (folder / "vlmkit_onnx.json").unlink(missing_ok=True)
    with (folder / named).open("wb") as file:
        file.write(GRAPH_FILES["GGUF"])
        file.truncate(2**40)  # a sparse file: reading it needs a terabyte
    found = request.getfixturevalue(loader).load(folder)
    assert_refused(found, named)
    assert "GGUF" in found["message"]
