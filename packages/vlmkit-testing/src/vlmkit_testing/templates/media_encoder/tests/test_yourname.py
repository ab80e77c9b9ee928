"""The encoder keeps vlmkit's contract, and outlives the process that computes for it."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from vlmkit.errors import EngineError
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
        self.made.append(ProcessEncoder())
        return self.made[-1]

    def slots(self) -> list[MediaSlot]:
        return [slot(0), slot(1), slot(2, num_features=2)]


@pytest.mark.parametrize("program", ["raise SystemExit", "import time; time.sleep(600)"])
def test_a_failed_process_is_reported_and_replaced(program: str) -> None:
    encoder = ProcessEncoder(0.5, (sys.executable, "-c", program))
    for _ in range(2):
        with pytest.raises(EngineError, match="ended, or took too long"):
            encoder.encode([slot(0)])
    encoder.close()
