"""Packed layers compute the same values as the original layers, in any order of calls."""

import itertools
import os
import weakref
from collections.abc import Callable, Sequence as Seq
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit import processor
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch import plugin
from vlmkit_torch.engine import packing
from vlmkit_torch.engine.packing import PackedLinear, PackedWeights
from vlmkit_torch.settings import EngineSettings
from vlmkit_torch.support import onednn

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
def test_layers_of_one_input_may_be_called_in_any_order(
    linears: list[nn.Linear], order: tuple[int, ...]
) -> None:
    packed = _packed(linears)

    for num_rows in (1, 7, 7):  # other rows of the same shape follow
        rows = torch.randn(1, num_rows, 16)
        assert all(_is_near(packed[i](rows), linears[i](rows)) for i in order)


@torch.no_grad()
def test_layers_with_another_input_compute_it_unpacked(
    linears: list[nn.Linear],
) -> None:
    packed = _packed(linears)
    first, second = torch.randn(3, 16), torch.randn(3, 16)

    for index, rows in ((0, first), (1, second), (1, second), (2, first), (0, second), (0, first)):
        assert _is_near(packed[index](rows), linears[index](rows))


@torch.no_grad()
@pytest.mark.parametrize("shape", [(9, 16), (1, 33, 16), (65, 1, 16), (1, 130, 16)])
def test_rows_that_are_added_do_not_change_a_product(
    linears: list[nn.Linear], shape: tuple[int, ...]
) -> None:
    rows = torch.randn(shape)
    for linear, layer in zip(linears, _packed(linears), strict=True):
        assert _is_near(layer(rows), linear(rows))


def test_products_have_few_numbers_of_rows_for_which_kernels_are_kept() -> None:
    computed = {num: packing.num_computed_rows(num) for num in range(1, 1025)}
    assert len(set(computed.values())) == 50
    assert all(num <= found < num + 32 for num, found in computed.items())
    assert all(found <= max(8, num * 4 / 3) for num, found in computed.items())


@torch.no_grad()
def test_products_are_dropped_after_all_layers_were_called(linears: list[nn.Linear]) -> None:
    packed = _packed(linears)
    rows = torch.randn(3, 16)
    is_there = weakref.ref(rows)

    answers = [layer(rows) for layer in packed]
    del rows

    assert len(answers) == len(SIZES)
    assert is_there() is None


@pytest.fixture
def packed_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MIN_NUMBERS", 0)
    monkeypatch.setattr(packing, "FIRST_SEQUENCES", 0)


def _num_packed(engine: Any) -> tuple[int, int]:
    """Return the numbers of packed and unpacked layers of an engine."""
    model = engine._views.model
    kinds = [type(module) for module in (*engine._views.decoder.modules(), model.lm_head)]
    return kinds.count(PackedLinear), kinds.count(nn.Linear)


def test_packing_begins_after_two_sequences_and_each_step_packs_one_group(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MIN_NUMBERS", 0)
    engine, _ = load("llama")  # the check at load runs no user sequence
    host = EngineHost(engine)
    num_layers = engine._views.text_config.num_hidden_layers
    for _ in range(2):
        host.last_logits(Prompt((20, 21, 22, 23)), (30, 31, 32, 33))
        assert _num_packed(engine) == (0, 7 * num_layers + 1)

    sequence = host.sequence(Prompt((20, 21, 22, 23)))
    host.admit(sequence)
    host.prefill(sequence)
    found = [_num_packed(engine)[0]]
    for _ in range(4 * num_layers + 4):
        host.step([host.next_item(sequence, 30)])
        found.append(_num_packed(engine)[0])
    assert {after - before for before, after in itertools.pairwise(found)} <= {0, 1, 2, 3}
    assert _num_packed(engine)[1] <= 1, "a head that shares its weights may stay"
    assert found[-1] == found[-2], "nothing is left to do"


def test_layers_of_two_inputs_are_packed_separately(
    monkeypatch: pytest.MonkeyPatch, packed_from_the_start: None
) -> None:
    made: list[int] = []

    class Counted(PackedWeights):
        def __init__(self, linears: Seq[nn.Linear]) -> None:
            made.append(len(linears))
            super().__init__(linears)

    monkeypatch.setattr(packing, "PackedWeights", Counted)
    pack_all(Model())

    assert sorted(made) == [1, 1, 1, 1, 1, 1, 3]


def test_layers_stay_plain_if_packed_results_differ(
    monkeypatch: pytest.MonkeyPatch,
    packed_from_the_start: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    product = PackedWeights.product
    monkeypatch.setattr(
        PackedWeights, "product", lambda self, i, rows: product(self, i, rows) * 1.01
    )
    model = Model()
    pack_all(model)

    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    assert caplog.text.count("stay plain") == 1


def test_packing_ends_where_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch,
    packed_from_the_start: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(packing, "PackedWeights", fail)
    pack_all(Model())
    assert caplog.text.count("memory ran out") == 1


def test_a_mapped_weight_is_dropped_from_memory_after_packing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed_from_the_start: None
) -> None:
    path = tmp_path / "m.safetensors"
    save_file({name: weight.detach() for name, weight in Model().named_parameters()}, path)
    model = Model()
    model.load_state_dict(load_file(path), assign=True)
    model.decoder.embedding.weight = model.head.weight
    dropped: list[int] = []
    drop = packing.MappedFiles.drop
    monkeypatch.setattr(
        packing.MappedFiles,
        "drop",
        lambda self, tensor: (
            dropped.append(tensor.nbytes if self.hold(tensor) else 0) or drop(self, tensor)
        ),
    )
    before = model.decoder.embedding.weight.clone()
    pack_all(model, [path])

    weights = (16 * 16 * 8, 32 * 16)
    assert sum(dropped) == 4 * sum(weights)
    assert isinstance(model.head, PackedLinear)
    assert torch.equal(model.decoder.embedding.weight, before)

    unmapped = Model()
    unmapped.decoder.embedding.weight = unmapped.head.weight
    pack_all(unmapped)
    assert isinstance(unmapped.head, nn.Linear), "there would be two copies in memory"


@pytest.mark.parametrize(
    ("dtype", "features", "is_packed"),
    [
        (torch.float32, (), True),
        (torch.bfloat16, ("avx512_bf16",), True),
        (torch.bfloat16, ("amx_bf16",), True),
        (torch.bfloat16, ("avx2",), False),
        (torch.float16, ("avx512_bf16",), False),
    ],
)
def test_packing_depends_on_precision_and_processor(
    dtype: torch.dtype,
    features: tuple[str, ...],
    is_packed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor, "features", lambda: frozenset(features))
    loaded: Any = SimpleNamespace(device=torch.device("cpu"), dtype=dtype)
    assert packing.is_faster(loaded.device, loaded.dtype) is is_packed


@pytest.mark.parametrize(("stated", "expected"), [(None, "64"), ("7", "7")])
def test_onednn_keeps_few_primitives_unless_the_environment_says_how_many(
    saved: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    stated: str | None,
    expected: str,
) -> None:
    monkeypatch.setenv(onednn.CAPACITY, stated or "")
    if stated is None:
        monkeypatch.delenv(onednn.CAPACITY)
    settings = EngineSettings(cache_tokens=800)
    engine = plugin._build_engine(BuildContext("", Checkpoint("m", saved("qwen3")), settings))
    assert os.environ[onednn.CAPACITY] == expected
    engine.close()


def test_the_sizes_of_packed_layers_are_known_before_they_are_packed(
    monkeypatch: pytest.MonkeyPatch, packed_from_the_start: None
) -> None:
    made: list[tuple[int, int]] = []

    class Noted(PackedWeights):
        def __init__(self, linears: Seq[nn.Linear]) -> None:
            made.append((linears[0].in_features, sum(each.out_features for each in linears)))
            super().__init__(linears)

    monkeypatch.setattr(packing, "PackedWeights", Noted)
    model = Model()
    known = list(packing.packed_sizes(model.decoder, model.head))
    pack_all(model)
    assert known == made


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(16, 16, bias=False))


class CrossAttention(Attention):
    pass


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross, self.embedding = Attention(), CrossAttention(), nn.Embedding(32, 16)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder, self.head = Decoder(), nn.Linear(16, 32, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, head: nn.Module) -> None:
        self.head = head


@torch.no_grad()
def pack_all(model: Model, files: Seq[Path] = ()) -> None:
    views: Any = SimpleNamespace(model=model, decoder=model.decoder, renew_head=lambda: None)
    own = packing.Packing(views, files)
    for _ in range(20):
        own.after_step()
