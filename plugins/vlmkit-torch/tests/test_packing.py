"""Packed layers compute what the layers computed that they stand for, however they are asked."""

import itertools
import weakref
from collections.abc import Sequence as Seq

import pytest
import torch
from torch import nn

from vlmkit_torch import packing
from vlmkit_torch.packing import PackedLinear, PackedWeights, pack

SIZES = (24, 8, 8)


@pytest.fixture(params=[False, True], ids=["plain", "bias"])
def linears(request: pytest.FixtureRequest) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(16, size, bias=request.param) for size in SIZES]


def _packed(linears: list[nn.Linear]) -> list[PackedLinear]:
    weights = PackedWeights(linears)
    return [PackedLinear(linear, weights, index) for index, linear in enumerate(linears)]


def _is_near(rows: torch.Tensor, expected: torch.Tensor) -> bool:
    return rows.shape == expected.shape and torch.allclose(rows, expected, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("order", [*itertools.permutations(range(len(SIZES)))])
def test_layers_of_one_input_may_be_asked_in_any_order(
    linears: list[nn.Linear], order: tuple[int, ...]
) -> None:
    packed = _packed(linears)

    for num_rows in (1, 7, 7):  # other rows of the same shape follow
        rows = torch.randn(1, num_rows, 16)
        assert all(_is_near(packed[i](rows), linears[i](rows)) for i in order)


@torch.no_grad()
def test_layers_that_are_asked_about_other_inputs_answer_about_those(
    linears: list[nn.Linear],
) -> None:
    packed = _packed(linears)
    first, second = torch.randn(3, 16), torch.randn(3, 16)

    for index, rows in ((0, first), (1, second), (1, second), (2, first), (0, second), (0, first)):
        assert _is_near(packed[index](rows), linears[index](rows))


@torch.no_grad()
def test_nothing_is_kept_once_all_layers_were_asked(linears: list[nn.Linear]) -> None:
    packed = _packed(linears)
    rows = torch.randn(3, 16)
    is_there = weakref.ref(rows)

    answers = [layer(rows) for layer in packed]
    del rows

    assert len(answers) == len(SIZES)
    assert is_there() is None


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(16, 16))


class CrossAttention(Attention):
    pass


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross, self.head = Attention(), CrossAttention(), nn.Linear(16, 32)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, head: nn.Module) -> None:
        self.head = head


def test_layers_of_two_inputs_are_packed_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST_NUMBERS", 0)
    made: list[int] = []

    class Counted(PackedWeights):
        def __init__(self, linears: Seq[nn.Linear]) -> None:
            made.append(len(linears))
            super().__init__(linears)

    monkeypatch.setattr(packing, "PackedWeights", Counted)
    model = Model()
    pack(model, model)

    assert sorted(made) == [1, 1, 1, 1, 1, 1, 3]
