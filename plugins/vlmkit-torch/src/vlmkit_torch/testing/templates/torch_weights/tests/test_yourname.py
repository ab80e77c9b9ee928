"""The reader keeps the contract of vlmkit-torch, and a model answers with its weights."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import vlmkit
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.interfaces.torch_weights import WeightReader
from vlmkit_torch.loading.stored_tensors import StoredTensors
from vlmkit_torch.testing import TorchWeightsContract
from vlmkit_yourname.weights import RowScaledReader

sys.path.append(str(Path(__file__).parent))
from quantized_model import save

Model = tuple[Path, Mapping[str, torch.Tensor]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("model")
    return folder, save(folder)


class TestRowScaledReader(TorchWeightsContract):
    @pytest.fixture(autouse=True)
    def _model(self, model: Model) -> None:
        self.checkpoint, self.values = Checkpoint("m", model[0]), model[1]

    def make(self) -> WeightReader:
        return RowScaledReader(self.files())

    def reference(self) -> Mapping[str, torch.Tensor]:
        return self.values


def test_a_model_answers(model: Model) -> None:
    settings = {"use": "torch", "weights": "yourname", "cache_tokens": 256}
    with vlmkit.load(str(model[0]), engine=settings) as loaded:
        done = loaded.generate("Hello", max_tokens=4, ignore_eos=True)
    assert done.usage.completion_tokens == 4


def test_a_weight_without_scales_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = StoredTensors.shape
    monkeypatch.setattr(
        StoredTensors,
        "shape",
        lambda self, name: (1,) if name.endswith("_scale") else shape(self, name),
    )
    with pytest.raises(CheckpointError, match="has no scale for each of its rows"):
        RowScaledReader(Checkpoint("m", model[0]))
