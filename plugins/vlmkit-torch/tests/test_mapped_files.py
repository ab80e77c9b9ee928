"""Pages of a mapped file are dropped after conversion, and their content can be read again."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from vlmkit_torch.loading.mapped_files import MappedFiles

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells and drops pages"),
]
NUM_BYTES = 2**22


def own_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's pages in the page table of this process."""
    first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    pages = range(first // mmap.PAGESIZE, -(-last // mmap.PAGESIZE))
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(8 * pages.start)
        entries = np.frombuffer(file.read(8 * len(pages)), dtype=np.uint64)
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE


@pytest.fixture
def mapped(tmp_path: Path) -> torch.Tensor:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.arange(NUM_BYTES // 4, dtype=torch.int32)}, path)
    return safe_open(path, framework="pt").get_slice("a")[...]


def test_pages_are_dropped_and_read_again(mapped: torch.Tensor, tmp_path: Path) -> None:
    total = mapped.sum()
    assert own_bytes(mapped) >= NUM_BYTES
    MappedFiles([tmp_path / "weights.safetensors"]).drop(mapped)
    # The first and the last page also hold other data, and the kernel reads ahead.
    assert own_bytes(mapped) <= 2 * mmap.PAGESIZE
    assert mapped.sum() == total


def test_only_the_pages_of_the_tensor_are_dropped(mapped: torch.Tensor, tmp_path: Path) -> None:
    half = mapped[: len(mapped) // 2]
    mapped.sum()
    MappedFiles([tmp_path / "weights.safetensors"]).drop(half)
    assert own_bytes(mapped[len(half) :]) >= NUM_BYTES // 2


def test_tensors_outside_the_files_are_never_dropped(mapped: torch.Tensor, tmp_path: Path) -> None:
    own = torch.ones(NUM_BYTES // 4)
    mapped.sum()
    MappedFiles([tmp_path / "another.safetensors"]).drop(mapped)
    files = MappedFiles([tmp_path / "weights.safetensors"])
    files.drop(own)
    files.drop(mapped[::2])
    assert own.sum() == len(own)
    assert own_bytes(mapped) >= NUM_BYTES
