"""The encoder keeps vlmkit's contract, and outlives the process that computes for it."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from vlmkit.errors import EngineError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_testing import MediaEncoderContract
from vlmkit_yourname.encoder import ProcessEncoder


def slot(seed: int, num_features: int = 4) -> MediaSlot:
    content = np.random.default_rng(seed).integers(0, 256, num_features * 8, np.uint8)
    inputs = {"digest": content, "size": np.array([48, 64], np.int32)}
    return MediaSlot(0, num_features, content.tobytes(), inputs, num_features)


class TestProcessEncoder(MediaEncoderContract):
    @pytest.fixture(autouse=True)
    def _processes(self) -> Iterator[None]:
        self.made: list[ProcessEncoder] = []
        yield
        for encoder in self.made:
            encoder.close()

    def make(self) -> MediaEncoder:
        self.made.append(ProcessEncoder(num_processes=2))
        return self.made[-1]

    def slots(self) -> list[MediaSlot]:
        return [slot(0), slot(1), slot(2, num_features=2)]


def digest_of(features: Sequence[MediaFeatures]) -> bytes:
    digest: Any = features[0].extra["digest"]
    return bytes(digest)


def test_calls_at_once_are_encoded_in_processes_of_their_own() -> None:
    encoder = ProcessEncoder(num_processes=2)
    with ThreadPoolExecutor(2) as threads:
        for _ in range(5):
            one, other = threads.map(encoder.encode, ([slot(0)], [slot(1)]))
            assert digest_of(one) == slot(0).digest
            assert digest_of(other) == slot(1).digest
    encoder.close()


@pytest.mark.parametrize("program", ["raise SystemExit", "import time; time.sleep(600)"])
def test_a_failed_process_is_reported_and_replaced(program: str) -> None:
    encoder = ProcessEncoder(0.5, (sys.executable, "-c", program))
    for _ in range(2):
        with pytest.raises(EngineError, match="ended, or took too long"):
            encoder.encode([slot(0)])
    encoder.close()
