"""Available memory is that of the machine, or less within limits of control groups."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vlmkit.kit import memory, processor

KIB = 1024


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that writes the files of a Linux system with nested control groups."""
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    return write


def test_memory_is_what_the_machine_has_available_without_limits(
    system: Callable[..., None],
) -> None:
    system("proc/meminfo", "MemTotal:  900 kB\nMemAvailable:   700 kB\n")
    assert memory.available_bytes() == 700 * KIB
    assert memory.limit_bytes() is None


@pytest.mark.parametrize(
    ("outer", "inner", "available", "limit"),
    [
        ("max", "max", 700 * KIB, None),
        ("max", "5000", 5000 - (3000 - 1500), 5000),
        ("4000", "5000", 4000 - (3000 - 1500), 4000),
        ("1000", "max", 0, 1000),
    ],
)
def test_a_limit_of_any_parent_control_group_counts(
    system: Callable[..., None], outer: str, inner: str, available: int, limit: int | None
) -> None:
    system("proc/meminfo", "MemAvailable:   700 kB\n")
    system("proc/self/cgroup", "1:cpu:/elsewhere\n0::/outer/inner\n")
    for group, stated in (("outer", outer), ("outer/inner", inner)):
        system(f"groups/{group}/memory.max", f"{stated}\n")
        system(f"groups/{group}/memory.current", "3000\n")
        system(f"groups/{group}/memory.stat", "anon 1500\nactive_file 500\ninactive_file 1000\n")
    assert memory.available_bytes() == available
    assert memory.limit_bytes() == limit


def test_memory_is_unknown_on_a_system_without_these_files(system: Callable[..., None]) -> None:
    assert memory.available_bytes() is None
    assert memory.limit_bytes() is None


def test_processor_features_are_those_of_the_first_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    assert processor.features() == frozenset()
    (tmp_path / "cpuinfo").write_text("processor: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nflags: x\n")
    assert processor.features() == {"fpu", "avx2", "avx512_bf16"}
