"""The cache on systems that commit memory for reserved addresses."""

import sys
from pathlib import Path
from typing import Any

import pytest

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.build import GIB, build_engine
from vlmkit_onnx.settings import EngineSettings

vlmkit_demo = pytest.importorskip("vlmkit_demo")
DEMO = Checkpoint("demo", Path(vlmkit_demo.__file__).with_name("checkpoint"))
SMALL = 2**22 / GIB
TOKEN_BYTES = 6144  # the packaged model


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


def cache_of(**settings: Any) -> tuple[int, int]:
    """Return the longest sequence of an engine and the bytes of all its slots."""
    engine = build_engine(BuildContext("", DEMO, EngineSettings(num_threads=1, **settings)))
    memory = engine._decoder.memory
    longest = engine.limits.max_sequence_tokens
    engine.close()
    return longest, memory.num_slots * memory.slot_tokens * memory.token_bytes


def test_slots_with_committed_memory_are_limited_by_the_cache_size(
    windows: None, caplog: pytest.LogCaptureFixture
) -> None:
    longest, num_bytes = cache_of(cache_gib=SMALL, max_sequences=4)

    assert 2**22 - 4 * TOKEN_BYTES < num_bytes <= 2**22
    assert f"sequences have at most {longest} tokens" in caplog.text


@pytest.mark.parametrize("stated", [{"max_sequence_tokens": 1000}, {"cache_tokens": 1000}])
def test_a_configured_sequence_length_is_used(windows: None, stated: dict[str, int]) -> None:
    _, num_bytes = cache_of(cache_gib=SMALL, max_sequences=4, **stated)

    assert num_bytes == 4 * 1001 * TOKEN_BYTES


@pytest.mark.skipif(sys.platform == "win32", reason="is what Windows does not do")
def test_slots_of_reserved_addresses_hold_the_longest_sequence_of_the_model() -> None:
    _, num_bytes = cache_of(cache_gib=SMALL, max_sequences=4)

    assert num_bytes >= 4 * 1025 * TOKEN_BYTES
