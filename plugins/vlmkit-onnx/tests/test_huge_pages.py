"""Large resident memory moves to huge pages without changing its contents."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from vlmkit_onnx.sessions import huge_pages
from vlmkit_onnx.sessions.huge_pages import Area

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such pages")

NUM_BYTES = 4 * huge_pages.MIN_BYTES
LISTED = """\
7f0000000000-7f0004000000 rw-p 00000000 00:00 0
Size:              65536 kB
Rss:               65000 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac
7f0005000000-7f0009000000 rw-p 00000000 fe:00 12 /weights of a model.bin
Rss:               65536 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac
7f000a000000-7f000e000000 r--p 00000000 00:00 0
Rss:               65536 kB
AnonHugePages:         0 kB
VmFlags: rd mr mw me ac
"""


@pytest.fixture
def numbers() -> np.ndarray:
    """Memory in small pages, with a number in each."""
    made = np.frombuffer(mmap.mmap(-1, NUM_BYTES), np.uint8)
    made[:] = (np.arange(NUM_BYTES, dtype=np.uint32) >> 12).astype(np.uint8)
    return made


def list_only(monkeypatch: pytest.MonkeyPatch, folder: Path, array: np.ndarray, rss: int) -> None:
    """Make one area the only one of this process."""
    start = array.ctypes.data
    file = folder / "smaps"
    file.write_text(
        f"{start:x}-{start + array.nbytes:x} rw-p 00000000 00:00 0\nRss: {rss // 1024} kB\n"
        "AnonHugePages: 0 kB\nVmFlags: rd wr mr mw me ac\n"
    )
    monkeypatch.setattr(huge_pages, "AREAS", file)
    setting = folder / "enabled"
    setting.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "SETTING", setting)


def test_only_private_memory_without_a_file_is_listed() -> None:
    start, size = 0x7F0000000000, 64 * 2**20
    expected = Area(start, size, resident=65000 * 1024, in_huge_pages=4096 * 1024)
    assert list(huge_pages.areas(LISTED.splitlines())) == [expected]


def test_moved_memory_keeps_its_contents(
    numbers: np.ndarray, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = numbers.copy()
    list_only(monkeypatch, tmp_path, numbers, NUM_BYTES)
    # A kernel before 6.1, or one without a free huge page, moves less than all.
    assert 0 <= huge_pages.move_resident() <= NUM_BYTES
    assert np.array_equal(numbers, before)


def test_memory_that_is_partly_resident_stays_in_small_pages(
    numbers: np.ndarray, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    list_only(monkeypatch, tmp_path, numbers, NUM_BYTES // 2)
    assert huge_pages.move_resident() == 0


def test_nothing_moves_where_huge_pages_are_disabled(
    numbers: np.ndarray, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    list_only(monkeypatch, tmp_path, numbers, NUM_BYTES)
    huge_pages.SETTING.write_text("always madvise [never]\n")
    assert huge_pages.move_resident() == 0
    huge_pages.SETTING.unlink()
    assert huge_pages.move_resident() == 0


def test_nothing_moves_where_the_system_hides_the_memory(
    numbers: np.ndarray, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    list_only(monkeypatch, tmp_path, numbers, NUM_BYTES)
    huge_pages.AREAS.unlink()
    assert huge_pages.move_resident() == 0
