"""The built-in sampler keeps its contract on torch, where it takes other paths than on NumPy."""

from collections.abc import Sequence as Seq

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from vlmkit.interfaces.prompt import Array  # noqa: E402 - needs torch
from vlmkit.running.sampling.sampler import ArraySampler  # noqa: E402
from vlmkit_testing import SamplerContract  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]


class TestArraySamplerOnTorch(SamplerContract):
    def make(self) -> ArraySampler:
        return ArraySampler()

    def array(self, rows: Seq[Seq[float]]) -> Array:
        made: Array = torch.tensor(np.array(rows, np.float32))
        return made


del SamplerContract  # pytest would collect this class
