"""Readers that break one promise each, and the test of the contract that detects it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from row_scaled import RowScaledReader, RowScaledWeight

from vlmkit.kit.checkpoint import Checkpoint


class SuppliesNothing(RowScaledReader):
    def weights(self) -> Mapping[str, Any]:
        return {}


class NamesTensorsByAText(RowScaledReader):
    def weights(self) -> Mapping[str, Any]:
        return made(self, AsText)


class ForgetsWeightsItReturned(RowScaledReader):
    """Returns each weight once."""

    returned: ClassVar[set[str]] = set()

    def weights(self) -> Mapping[str, Any]:
        every = super().weights()
        new = {name: weight for name, weight in every.items() if name not in self.returned}
        self.returned.update(list(new)[:1])
        return new


class TakesScalesTwice(RowScaledReader):
    """Takes the scale of the first weight for all."""

    def weights(self) -> Mapping[str, Any]:
        first = next(iter(super().weights()))
        return {n: SharesScale(n, self.stored, first) for n in super().weights()}


class LeavesOut(RowScaledReader):
    """Leaves out projections that it does not know."""

    def weights(self) -> Mapping[str, Any]:
        return {name: w for name, w in super().weights().items() if "down_proj" not in name}


class RenamesToPlain(RowScaledReader):
    """Gives one weight the name of a norm."""

    def weights(self) -> Mapping[str, Any]:
        plain = next(name for name in self.stored if "norm" in name)
        first, *rest = super().weights().items()
        return {plain: first[1], **dict(rest)}


class Transposes(RowScaledReader):
    """Returns ``[in, out]``."""

    def weights(self) -> Mapping[str, Any]:
        return made(self, Transposed)


class DividesByScales(RowScaledReader):
    """Divides by the part of each scale that is below its precision."""

    def weights(self) -> Mapping[str, Any]:
        return made(self, Infinite)


class KeepsDenseWeights(RowScaledReader):
    def weights(self) -> Mapping[str, Any]:
        return made(self, Kept)


class AddsNoise(RowScaledReader):
    def weights(self) -> Mapping[str, Any]:
        return made(self, Noisy)


class NeedsItsThread(RowScaledReader):
    """Keeps its files for the thread that made it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.own = threading.get_ident()

    def weights(self) -> Mapping[str, Any]:
        return {n: OfThread(n, self.stored, self.own) for n in super().weights()}


class SubtractsOne(RowScaledReader):
    """Takes zero points of one."""

    def weights(self) -> Mapping[str, Any]:
        return made(self, Shifted)


def made(reader: RowScaledReader, kind: Any) -> dict[str, Any]:
    return {name: kind(name, reader.stored) for name in RowScaledReader.weights(reader)}


class AsText(RowScaledWeight):
    @property
    def tensors(self) -> Any:
        return f"{self.name}_int8"


@dataclass(frozen=True)
class SharesScale(RowScaledWeight):
    first: str

    @property
    def tensors(self) -> tuple[str, ...]:
        return (f"{self.name}_int8", f"{self.first}_scale")


class Transposed(RowScaledWeight):
    def dense(self) -> torch.Tensor:
        return super().dense().T[:, :1]


class Infinite(RowScaledWeight):
    def dense(self) -> torch.Tensor:
        return super().dense() / 0


KEPT: dict[tuple[int, str], torch.Tensor] = {}


class Kept(RowScaledWeight):
    def dense(self) -> torch.Tensor:
        return KEPT.setdefault((id(self.stored), self.name), super().dense())


class Noisy(RowScaledWeight):
    def dense(self) -> torch.Tensor:
        return super().dense() + id(self) % 7919


@dataclass(frozen=True)
class OfThread(RowScaledWeight):
    own: int

    def dense(self) -> torch.Tensor:
        assert threading.get_ident() == self.own
        return super().dense()


class Shifted(RowScaledWeight):
    def dense(self) -> torch.Tensor:
        return super().dense() - self.stored[f"{self.name}_scale"].float()[:, None]


DETECTED_BY: dict[type[RowScaledReader], str] = {
    SuppliesNothing: "it_supplies_weights",
    NamesTensorsByAText: "it_supplies_weights",
    ForgetsWeightsItReturned: "it_says_the_same_again",
    TakesScalesTwice: "weights_consist_of_tensors_of_the_files",
    LeavesOut: "no_packed_tensor_is_left",
    RenamesToPlain: "no_weight_has_the_name_of_a_plain_one",
    Transposes: "dense_weights_have_the_stated_shape",
    DividesByScales: "dense_weights_are_finite",
    KeepsDenseWeights: "a_dense_weight_is_the_callers",
    AddsNoise: "two_readers_agree",
    NeedsItsThread: "weights_are_read_in_any_thread",
    SubtractsOne: "the_reference_is_met",
}
