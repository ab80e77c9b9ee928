"""Readers of quantized weights: those of this plugin, those of others, and broken ones."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from broken_readers import DETECTED_BY
from row_scaled import RowScaledReader, RowScaledWeight, quantize

from pretend.steps import TEXTS
from vlmkit.errors import CheckpointError, PluginUnavailable, UnknownPlugin
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import ENGINE
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch import plugin
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.interfaces.kinds import DISTRIBUTION, TORCH_WEIGHTS
from vlmkit_torch.interfaces.torch_weights import WeightReader
from vlmkit_torch.settings import EngineSettings
from vlmkit_torch.testing import TorchWeightsContract

pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]
GUEST = "vlmkit-guest"
COMPRESSED = "'compressed-tensors'"
ONLY = f"it reads {COMPRESSED} only"
WHO = "torch weights 'guest' from 'vlmkit-guest'"


@dataclass
class Quantized:
    """A family's folder with quantized weights, and one with the same values as plain weights."""

    folder: Path
    plain: Path
    values: Mapping[str, torch.Tensor]


@pytest.fixture
def quantized(saved: Saved, tmp_path: Path) -> Callable[..., Quantized]:
    def make(family: str = "llama", **stated: Any) -> Quantized:
        folder, plain = tmp_path / family, tmp_path / f"{family}-plain"
        for place in (folder, plain):
            shutil.copytree(saved(family), place)
        return Quantized(folder, plain, quantize(folder, plain, **stated))

    return make


def cannot_serve(checkpoint: Checkpoint) -> str | None:
    stated = checkpoint.config.get("quantization_config", {})
    return None if stated.get("quant_method") == "row-scaled" else "it reads 'row-scaled' only"


def registered(reader: Callable[[Checkpoint], WeightReader], **more: Any) -> Registries:
    """Return the engine and the readers of vlmkit-torch, and the reader of another plugin."""
    found = Registries(kinds=(ENGINE, TORCH_WEIGHTS))
    own = Registries(DISTRIBUTION, found.kinds)
    plugin.vlmkit_register_engines(own.engines)
    plugin.vlmkit_register_torch_weights(own.torch_weights)
    guest = Registries(GUEST, found.kinds)
    more = {"cannot_serve": cannot_serve, **more}
    guest.torch_weights.add("guest", lambda context: reader(context.files), **more)
    found.merge(own)
    found.merge(guest)
    return found


def engine_of(folder: Path, registries: Registries | None = None, weights: str = "auto") -> Any:
    settings = EngineSettings(
        cache_tokens=800, block_tokens=4, max_chunk_tokens=64, weights=weights, dtype="float32"
    )
    by_kind = {} if registries is None else registries.by_kind
    files = Checkpoint(folder.name, folder)
    return torch_engine.build(BuildContext("", files, settings, registries=by_kind))


@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3_moe"])
def test_a_reader_of_another_plugin_answers_as_the_plain_weights(
    family: str, quantized: Callable[..., Quantized]
) -> None:
    made = quantized(family)
    found, wanted = (
        EngineHost(engine_of(made.folder, registered(RowScaledReader))),
        EngineHost(engine_of(made.plain)),
    )
    for prompt in TEXTS:
        # On some CPUs, kernels of unequal alignment differ in the last bits.
        np.testing.assert_allclose(
            found.last_logits(prompt, (30,)), wanted.last_logits(prompt, (30,)), rtol=0, atol=1e-5
        )


def test_whether_an_engine_serves_a_checkpoint_depends_on_the_installed_readers(
    quantized: Callable[..., Quantized],
) -> None:
    checkpoint = Checkpoint("m", quantized().folder)
    reason = "its weights are quantized by 'row-scaled', which is not supported"
    found = registered(RowScaledReader)
    assert found.engines.objections(checkpoint) == {"torch": None}
    assert plugin._engine_cannot_serve(checkpoint) == reason, "without other readers"
    found = registered(RowScaledReader, cannot_serve=lambda _: "it needs a key")
    assert found.engines.objections(checkpoint) == {"torch": f"{reason} (guest: it needs a key)"}


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ("gest", UnknownPlugin, "no installed plugin provides torch weights 'gest'"),
        (
            "compressed-tensors",
            PluginUnavailable,
            f"torch weights {COMPRESSED} from {DISTRIBUTION!r} cannot be used: {ONLY}",
        ),
    ],
)
def test_a_named_reader_that_cannot_read_a_method_is_refused(
    weights: str, error: type[Exception], message: str, quantized: Callable[..., Quantized]
) -> None:
    with pytest.raises(error) as found:
        engine_of(quantized().folder, registered(RowScaledReader), weights)
    assert str(found.value) == message


def test_the_doctor_names_the_reader_that_an_engine_would_use(
    quantized: Callable[..., Quantized],
) -> None:
    made = quantized()
    found = registered(RowScaledReader)

    def examined(folder: Path, **settings: Any) -> str:
        context = BuildContext("", Checkpoint("m", folder), registries=found.by_kind)
        return found.engines.examine("torch", {"device": "cpu", **settings}, context)

    assert examined(made.folder) == f"float32, cpu, {WHO}"
    assert examined(made.plain) == "float32, cpu"
    with pytest.raises(UnknownPlugin, match="torch weights 'gest'"):
        examined(made.folder, weights="gest")


class Raises(RowScaledReader):
    def weights(self) -> Any:
        raise KeyError("secret")


class ReturnsAList(RowScaledReader):
    def weights(self) -> Any:
        return [*super().weights()]


class MissesOne(RowScaledReader):
    def weights(self) -> Any:
        _, *rest = super().weights().items()
        return dict(rest)


class Invents(RowScaledReader):
    def weights(self) -> Any:
        return {n: Changed(w.name, w.stored, more=("x",)) for n, w in super().weights().items()}


class Repeats(RowScaledReader):
    def weights(self) -> Any:
        first = next(iter(super().weights().values()))
        return {name: Changed(first.name, first.stored) for name in super().weights()}


@dataclass(frozen=True)
class Changed(RowScaledWeight):
    """A weight whose value passes through a function."""

    change: Callable[[torch.Tensor], Any] = lambda dense: dense
    more: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.name + "_int8", self.name + "_scale", *self.more)

    def dense(self) -> Any:
        integers, scale = (self.stored[name] for name in self.tensors)
        return self.change(integers.float() * scale.float()[:, None])


def changing(change: Callable[[torch.Tensor], Any]) -> type[RowScaledReader]:
    class Reader(RowScaledReader):
        def weights(self) -> Any:
            return {n: Changed(w.name, w.stored, change) for n, w in super().weights().items()}

    return Reader


def fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError("secret")


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (Raises, f"{WHO} raised KeyError in 'weights'"),
        (ReturnsAList, f"{WHO} returned a value of type 'list' from 'weights'"),
        (Invents, f"consists of 'x', which the files do not have, by {WHO}"),
        (Repeats, f"by {WHO}"),
        (changing(fail), f"{WHO} raised ZeroDivisionError in 'dense of model.layers.0."),
        (changing(lambda dense: dense.T[:1]), "instead of"),
        (changing(lambda dense: dense.to(torch.int8)), "is torch.int8, not a tensor of floating"),
        (changing(lambda dense: None), "is NoneType, not a tensor of floating-point numbers"),
        (changing(lambda dense: dense / 0), f"has values that are not finite, by {WHO}"),
        (MissesOne, "weights, such as 'model.layers.0."),
    ],
)
def test_a_broken_reader_is_named_in_the_error(
    reader: type[RowScaledReader], message: str, quantized: Callable[..., Quantized]
) -> None:
    with pytest.raises(CheckpointError) as error:
        engine_of(quantized().folder, registered(reader))
    assert message in str(error.value)
    assert "secret" not in str(error.value)


def test_a_plain_checkpoint_asks_no_reader(saved: Saved) -> None:
    engine_of(saved("llama"), registered(Raises, cannot_serve=lambda _: None))


# The contract.


def contract_on(
    reader: Callable[[Checkpoint], WeightReader], made: Quantized
) -> TorchWeightsContract:
    class On(TorchWeightsContract):
        checkpoint = Checkpoint("m", made.folder)

        def make(self) -> WeightReader:
            return reader(self.files())

        def reference(self) -> Mapping[str, torch.Tensor]:
            return made.values

    return On()


TESTS = [name for name in dir(TorchWeightsContract) if name.startswith("test_")]


@pytest.mark.parametrize("test", TESTS)
def test_an_honest_reader_keeps_the_contract(
    test: str, quantized: Callable[..., Quantized]
) -> None:
    getattr(contract_on(RowScaledReader, quantized()), test)()


@pytest.mark.parametrize("reader", DETECTED_BY, ids=lambda reader: reader.__name__)
def test_the_contract_detects_a_broken_reader(
    reader: type[RowScaledReader], quantized: Callable[..., Quantized]
) -> None:
    test = getattr(contract_on(reader, quantized()), f"test_{DETECTED_BY[reader]}")
    with pytest.raises((AssertionError, RuntimeError)):
        test()


def test_every_test_of_the_contract_detects_a_broken_reader() -> None:
    assert {f"test_{name}" for name in DETECTED_BY.values()} == set(TESTS)


def test_readers_of_this_plugin_leave_reading_to_transformers() -> None:
    for name in ("transformers", "compressed-tensors"):
        registry = registered(RowScaledReader).torch_weights
        reader = registry.get(name).build(BuildContext("", Checkpoint("m", Path())))
        stated = {"quant_method": "fp8", "config_groups": {}}
        assert json.dumps(reader.transformers_config(stated))
        assert reader.weights() == {}
