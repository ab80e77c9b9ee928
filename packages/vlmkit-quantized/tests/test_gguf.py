"""GGUF files: blocks as the package ``gguf`` computes them, and headers that are hostile."""

import os
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from vlmkit_quantized import gguf_file
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_blocks import BLOCK_FORMATS
from vlmkit_quantized.gguf_file import TYPE_NAMES, read_header

ROWS = 48
WRITABLE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]  # by the package, from floats


def blocks(name: str) -> np.ndarray[Any, Any]:
    """Return rows of random bytes whose scales are finite."""
    size = BLOCK_FORMATS[name].num_bytes
    octets = np.random.default_rng(7).integers(0, 256, (4 * ROWS, 3 * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(octets, gguf.GGMLQuantizationType[name])
    return octets[np.isfinite(values).all(axis=1)][:ROWS]


SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
"""The places of 16-bit floats in blocks."""


def with_scales(octets: Any, name: str, bits: int) -> Any:
    """Return rows of blocks of which every float has these bits."""
    changed = octets.reshape(-1, BLOCK_FORMATS[name].num_bytes).copy()
    for place in SCALES[name]:
        changed[:, place : place + 2] = np.array([bits], "<u2").view(np.uint8)
    return changed.reshape(octets.shape)


def written(path: Path, *tensors: tuple[str, Any, str], **fields: Any) -> Path:
    """Write a file with the package ``gguf``."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        add = {list: writer.add_array, str: writer.add_string, int: writer.add_uint32}
        add[type(value)](key.replace("__", "."), value)
    for name, array, kind in tensors:
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_values_of_blocks_have_the_bits_of_the_package(name: str) -> None:
    octets, found = blocks(name), BLOCK_FORMATS[name]
    kind = gguf.GGMLQuantizationType[name]
    assert gguf.GGML_QUANT_SIZES[kind] == (found.num_weights, found.num_bytes)
    values = found.linear(octets).dense()
    assert values.tobytes() == gguf.quants.dequantize(octets, kind).tobytes()


@pytest.mark.parametrize("name", WRITABLE)
def test_a_written_file_is_read_back(name: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(3).normal(size=(6, 10, 64)).astype(np.float32)
    octets = gguf.quants.quantize(values, kind)
    plain = np.arange(7, dtype=np.float32)
    path = written(
        tmp_path / "a.gguf",
        ("blk.0.w", octets, name),
        ("norm", plain, "F32"),
        ("half", plain.astype(np.float16), "F16"),
        tokenizer__ggml__tokens=["a", "ü", "c"],
        llama__numbers=[1, 2, 3],
        llama__block_count=2,
        general__name="a name",
    )
    found = read_header(path)
    assert found.fields["general.architecture"] == "llama"
    assert found.fields["general.name"] == "a name"
    assert found.fields["llama.block_count"] == 2
    assert found.fields["tokenizer.ggml.tokens"] == ["a", "ü", "c"]
    assert list(found.fields["llama.numbers"]) == [1, 2, 3]
    tensor = found.tensors["blk.0.w"]
    assert (tensor.shape, tensor.type) == ((6, 10, 64), name)
    dequantized = gguf.quants.dequantize(octets, kind)
    assert tensor.floats().tobytes() == dequantized.tobytes()
    assert tensor.linear(20, 30).dense().tobytes() == dequantized.reshape(60, 64)[20:30].tobytes()
    assert (found.tensors["norm"].floats() == plain).all()
    assert (found.tensors["half"].floats() == plain).all()


def test_a_float_of_16_bits_keeps_its_value(tmp_path: Path) -> None:
    values = np.array([1.5, -3e38, 1e-40], np.float32)
    octets = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    path = written(tmp_path / "a.gguf", ("b", octets, "BF16"))
    wanted = (values.view(np.uint32) >> 16 << 16).view(np.float32)
    assert (read_header(path).tensors["b"].floats() == wanted).all()


def test_all_types_have_the_names_of_the_package() -> None:
    for number, name in TYPE_NAMES.items():
        assert gguf.GGMLQuantizationType(number).name == name


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("bits", [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF])
def test_values_of_extreme_scales_have_the_bits_of_the_package(name: str, bits: int) -> None:
    octets = with_scales(blocks(name), name, bits)
    values = BLOCK_FORMATS[name].linear(octets).dense()
    kind = gguf.GGMLQuantizationType[name]
    assert values.tobytes() == gguf.quants.dequantize(octets, kind).tobytes()
    assert np.isfinite(values).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00])
def test_blocks_with_a_scale_that_is_not_finite_are_rejected_without_a_warning(
    name: str, bits: int
) -> None:
    with pytest.raises(FormatError, match="are not"):
        BLOCK_FORMATS[name].linear(with_scales(blocks(name), name, bits))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("exponent", [0, 1, 127, 252, 253, 255])
def test_an_exponent_of_values_that_are_not_finite_is_rejected(exponent: int) -> None:
    octets = blocks("MXFP4")
    octets[:, ::17] = exponent
    if exponent > 252:
        with pytest.raises(FormatError, match="whose values are not"):
            BLOCK_FORMATS["MXFP4"].linear(octets)
        return
    values = BLOCK_FORMATS["MXFP4"].linear(octets).dense()
    wanted = gguf.quants.dequantize(octets, gguf.GGMLQuantizationType.MXFP4)
    assert values.tobytes() == wanted.tobytes()


def test_a_scale_that_is_not_finite_is_rejected(tmp_path: Path) -> None:
    octets = np.zeros((1, 18), np.uint8)
    octets[0, :2] = np.array([np.inf], np.float16).view(np.uint8)
    path = written(tmp_path / "a.gguf", ("w", octets, "Q4_0"))
    with pytest.raises(FormatError, match="scales that are not finite"):
        read_header(path).tensors["w"].floats()


# Headers that contradict themselves.


def text(content: str) -> bytes:
    return struct.pack("<Q", len(content)) + content.encode()


def field(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    axes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + axes + struct.pack("<IQ", kind, offset)


def header(
    *parts: bytes, fields: int = 0, tensors: int = 0, magic: bytes = b"GGUF", version: int = 3
) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, fields) + b"".join(parts)


ARRAY = gguf_file.ARRAY
HOSTILE = {
    "is no GGUF file": header(magic=b"GGML"),
    "of version 1": header(version=1),
    "big-endian": header(version=3 << 24),
    "ends within its header": header(fields=1),
    "states 4294967296 fields": header(fields=2**32),
    "has a name that is too long": header(struct.pack("<Q", 2**40), fields=1),
    "has a name that is no text": header(struct.pack("<Q", 2) + b"\xff\xfe", fields=1),
    "two of the field 'a'": header(field("a", 0, b"1"), field("a", 0, b"1"), fields=2),
    "two of the tensor 't'": header(tensor("t"), tensor("t", offset=128), tensors=2),
    "unknown type 13": header(field("a", 13, b"1"), fields=1),
    "unknown type 77": header(field("a", ARRAY, struct.pack("<IQ", 77, 1)), fields=1),
    "array of arrays": header(field("a", ARRAY, struct.pack("<IQ", ARRAY, 1)), fields=1),
    "more than 2097152 texts": header(
        field("a", ARRAY, struct.pack("<IQ", 8, 2**21 + 1)), fields=1
    ),
    "one of several parts": header(field("split.count", 2, b"\2\0"), fields=1),
    "needs a whole number in 'split.count'": header(
        field("split.count", ARRAY, struct.pack("<IQ2H", 2, 2, 1, 1)), fields=1
    ),
    "no power of two": header(field("general.alignment", 4, struct.pack("<I", 24)), fields=1),
    "of 0 axes": header(tensor("t", ()), tensors=1),
    "of 5 axes": header(tensor("t", (1,) * 5), tensors=1),
    "the type IQ2_XS": header(tensor("t", (256,), kind=17), tensors=1),
    "the type 99": header(tensor("t", kind=99), tensors=1),
    r"type Q4_0 and shape \[33\]": header(tensor("t", (33,), kind=2), tensors=1),
    r"shape \[4, 0\]": header(tensor("t", (0, 4)), tensors=1),
    "'t' that is not aligned": header(tensor("t", offset=4), tensors=1),
    "'u' that overlaps": header(tensor("t", (64,)), tensor("u", offset=32), tensors=2),
    "a gap before its tensor 'u'": header(tensor("t"), tensor("u", offset=256), tensors=2),
    "bytes behind its last tensor": header(tensor("t"), tensors=1),
    "ends within its tensor 't'": header(tensor("t", (2**20,)), tensors=1),
    "ends within its tensor 'v'": header(tensor("v", (2**63, 2**63, 2**63)), tensors=1),
}


@pytest.mark.parametrize("problem", HOSTILE)
def test_a_header_that_contradicts_itself_is_rejected(problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(
        HOSTILE[problem].ljust(512, b"\0") if "header" not in problem else HOSTILE[problem]
    )
    with pytest.raises(FormatError, match=problem):
        read_header(path)


PIECES = [f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def written_pieces(folder: Path) -> list[Path]:
    """Write a file in three pieces, with a tensor in each."""
    writer = gguf.GGUFWriter(folder / "a.gguf", "llama", split_max_tensors=1)
    for name in "uvw":
        writer.add_tensor(name, np.full((2, 32), ord(name), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [folder / name for name in PIECES]


def test_a_file_in_pieces_has_the_tensors_of_all(tmp_path: Path) -> None:
    files = written_pieces(tmp_path)
    found = read_header(files[0])
    assert found.text("general.architecture") == "llama"
    assert {name: tensor.file for name, tensor in found.tensors.items()} == dict(
        zip("uvw", files, strict=True)
    )
    assert all((t.floats() == ord(name)).all() for name, t in found.tensors.items())


def swap(files: list[Path]) -> None:
    """Exchange the second and the third piece."""
    contents = [file.read_bytes() for file in files]
    files[1].write_bytes(contents[2])
    files[2].write_bytes(contents[1])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda files: files[1].unlink(),
            "is in 3 parts, and 'a-00002-of-00003.gguf' is not beside",
        ),
        (swap, "should be part 2 of 3, and says otherwise"),
        (lambda files: files[1].rename(files[0]), "is one of several parts: name the first one"),
        (
            lambda files: [
                file.write_bytes(file.read_bytes().replace(b"v", b"u")) for file in files
            ],
            "has a tensor 'u', which an earlier part has, too",
        ),
        (lambda files: files[2].write_bytes(files[2].read_bytes()[:-64]), "ends within its tensor"),
    ],
)
def test_pieces_that_do_not_fit_are_rejected_by_name(
    change: Callable[[list[Path]], object], problem: str, tmp_path: Path
) -> None:
    files = written_pieces(tmp_path)
    change(files)
    with pytest.raises(FormatError, match=problem):
        read_header(files[0])


def test_a_file_with_other_tensors_than_it_states_is_rejected(tmp_path: Path) -> None:
    files = written_pieces(tmp_path)
    stated = struct.pack("<Ii", 5, 3)
    content = files[0].read_bytes()
    assert content.count(stated) == 1
    files[0].write_bytes(content.replace(stated, struct.pack("<Ii", 5, 4)))
    with pytest.raises(FormatError, match="has 3 tensors in its parts, and states 4"):
        read_header(files[0])


@pytest.mark.posix
def test_a_pipe_is_rejected_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gguf")
    with pytest.raises(FormatError, match=r"'a\.gguf' is a pipe"):
        read_header(tmp_path / "a.gguf")


@pytest.mark.posix
def test_a_device_and_a_folder_are_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "zero.gguf").symlink_to("/dev/zero")
    (tmp_path / "folder.gguf").mkdir()
    for name in ("zero", "folder"):
        with pytest.raises(FormatError, match=f"'{name}.gguf' is a pipe, a folder or a device"):
            read_header(tmp_path / f"{name}.gguf")


@pytest.mark.parametrize("kind", ["Q8_0", "F32"])
def test_a_file_that_changes_after_its_header_was_read_is_rejected(
    kind: str, tmp_path: Path
) -> None:
    values = np.random.default_rng(3).normal(size=(64, 64)).astype(np.float32)
    octets = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    path = written(tmp_path / "a.gguf", ("w", octets, kind))
    tensor, content = read_header(path).tensors["w"], path.read_bytes()
    path.write_bytes(content[:-1000])
    with pytest.raises(FormatError, match=r"the file 'a\.gguf' changed meanwhile"):
        tensor.floats()
    (tmp_path / "b.gguf").write_bytes(bytes(len(content)))
    (tmp_path / "b.gguf").replace(path)
    with pytest.raises(FormatError, match=r"the file 'a\.gguf' changed meanwhile"):
        tensor.floats()
    path.unlink()
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        tensor.floats()


def test_a_header_over_the_limit_is_rejected_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    size = 2**27
    with path.open("wb") as file:
        file.write(header(text("a") + struct.pack("<IQ", 8, size), fields=1))
        file.truncate(2**28)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="too large a header"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    octets = gguf.quants.quantize(np.eye(32, dtype=np.float32), gguf.GGMLQuantizationType.Q8_0)
    tensors = [("a", octets, "Q8_0"), ("b", np.ones(5, np.float32), "F32")]
    return written(folder / "a.gguf", *tensors, tokens=["x", "y"], numbers=[1, 2]).read_bytes()


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_changed_headers_are_rejected_or_describe_tensors_in_the_file(
    data: st.DataObject, sound: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = data.draw(st.integers(0, len(sound) - 32 * 34 - 64))
    octets = bytearray(sound)
    octets[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(octets)
    with suppress(FormatError):
        for found in read_header(path).tensors.values():
            assert found.begin + found.num_bytes <= len(octets)
            found.floats()
