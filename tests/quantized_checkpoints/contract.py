"""The contract of weight readers, for a quantized checkpoint that the tests made."""

from typing import Any

from quantized_checkpoints.folders import Quantized
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.loading.own_readers import QuantizedReader
from vlmkit_torch.testing import TorchWeightsContract

CONTRACT = [name for name in dir(TorchWeightsContract) if name.startswith("test_")]
"""The names of its tests."""


def check(test: str, made: Quantized) -> None:
    """Run one test of the contract.

    Raises:
        AssertionError: the reader does not keep it.
    """

    class On(TorchWeightsContract):
        checkpoint = Checkpoint("m", made.folder)

        def make(self) -> QuantizedReader:
            return QuantizedReader(self.files())

        def reference(self) -> Any:
            return made.values

    getattr(On(), test)()
