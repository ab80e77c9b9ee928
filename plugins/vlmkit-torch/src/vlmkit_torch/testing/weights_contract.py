"""What every reader of quantized weights for vlmkit-torch must do."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.interfaces.torch_weights import StoredWeight, WeightReader
from vlmkit_torch.loading.stored_tensors import StoredTensors

MAX_TRIED = 24  # weights, because a real model has hundreds
PACKED = ("I", "U", "F8", "F4", "F6")  # how dtypes of safetensors begin that hold no plain weights


class TorchWeightsContract:
    """Inherit it, override :meth:`make` and :meth:`files`, and run pytest.

    Attributes:
        checkpoint: the files that ``make`` reads; ``vlmkit plugins check NAME MODEL`` sets it.
        atol: how far weights may be from those of :meth:`reference`.
    """

    checkpoint: Checkpoint | None = None
    atol: float = 0.0

    def make(self) -> WeightReader:
        """Return a new reader of :meth:`files`."""
        raise NotImplementedError

    def files(self) -> Checkpoint:
        """Return a quantized checkpoint."""
        if self.checkpoint is None:
            raise NotImplementedError
        return self.checkpoint

    def reference(self) -> Mapping[str, torch.Tensor]:
        """Return the values of some weights, if they are known."""
        return {}

    def test_it_supplies_weights(self) -> None:
        """Each has a name, a shape without zeros, and the tensors that it consists of.

        Without safetensors files, there are none.
        """
        weights, stored = self._weights(), StoredTensors(self.files())
        assert weights
        for name, weight in weights.items():
            tensors: object = weight.tensors  # it may be anything
            assert name
            assert all(size > 0 for size in weight.shape)
            assert tensors or not stored
            assert not isinstance(tensors, str)

    def test_it_says_the_same_again(self) -> None:
        """Names, shapes and tensors depend on the files alone."""
        first, second = (
            {name: (tuple(w.shape), tuple(w.tensors)) for name, w in weights.items()}
            for weights in (self._weights(), self._weights())
        )
        assert first == second

    def test_weights_consist_of_tensors_of_the_files(self) -> None:
        """Each tensor belongs to one weight at most."""
        stored = StoredTensors(self.files())
        used = [tensor for weight in self._weights().values() for tensor in weight.tensors]
        assert set(used) <= set(stored)
        assert len(used) == len(set(used))

    def test_no_packed_tensor_is_left(self) -> None:
        """What it does not take is read as a plain weight, which packed numbers are not."""
        stored = StoredTensors(self.files())
        used = {tensor for weight in self._weights().values() for tensor in weight.tensors}
        left = [name for name in stored if name not in used]
        assert [name for name in left if stored.dtype(name).startswith(PACKED)] == []

    def test_no_weight_has_the_name_of_a_plain_one(self) -> None:
        """Tensors of the files that belong to no weight keep their names."""
        weights = self._weights()
        used = {tensor for weight in weights.values() for tensor in weight.tensors}
        assert not {name for name in StoredTensors(self.files()) if name not in used} & set(weights)

    def test_dense_weights_have_the_stated_shape(self) -> None:
        """They are floating-point numbers in the memory of the CPU."""
        for weight in self._tried():
            dense = weight.dense()
            assert isinstance(dense, torch.Tensor)
            assert dense.is_floating_point()
            assert (dense.device.type, tuple(dense.shape)) == ("cpu", tuple(weight.shape))

    def test_dense_weights_are_finite(self) -> None:
        """Others would make every answer NaN."""
        for weight in self._tried():
            assert bool(weight.dense().isfinite().all())

    def test_a_dense_weight_is_the_callers(self) -> None:
        """Changing it changes no later one."""
        for weight in self._tried():
            first = weight.dense()
            before = first.clone()
            first.zero_()
            assert torch.equal(weight.dense(), before)

    def test_two_readers_agree(self) -> None:
        """A weight depends on the files alone."""
        for first, second in zip(self._tried(), self._tried(), strict=True):
            assert torch.equal(first.dense(), second.dense())

    def test_weights_are_read_in_any_thread(self) -> None:
        """One at a time, but not always by the same thread."""
        expected = [weight.dense() for weight in self._tried()]
        for weight, wanted in zip(self._tried(), expected, strict=True):
            with ThreadPoolExecutor(1) as thread:
                assert torch.equal(thread.submit(weight.dense).result(), wanted)

    def test_the_reference_is_met(self) -> None:
        """If the values are known; see :meth:`reference`."""
        if not (reference := self.reference()):
            pytest.skip("no values are known")
        weights = self._weights()
        for name, wanted in reference.items():
            found = weights[name].dense()
            torch.testing.assert_close(found.double(), wanted.double(), atol=self.atol, rtol=0)

    def _weights(self) -> Mapping[str, StoredWeight]:
        reader = self.make()
        assert isinstance(reader, WeightReader)
        stated = self.files().config.get("quantization_config")
        if isinstance(stated, Mapping) and reader.transformers_config(stated) is not None:
            pytest.skip("transformers reads the weights")
        return reader.weights()

    def _tried(self) -> list[StoredWeight]:
        weights = self._weights()
        names = sorted(weights)
        return [weights[name] for name in names[:: -(-len(names) // MAX_TRIED) or 1]]
