"""Layers that stay packed compute what their dequantized weights do, and answer alike."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from parity import pipeline, runner  # noqa: E402 - they need torch
from pretend.torch_cuda import pretended_cuda  # noqa: E402
from quantized_checkpoints import (  # noqa: E402
    awq,
    bitsandbytes,
    compressed,
    folders,
    gguf_folders,
    gptq,
)
from quantized_checkpoints.folders import Quantized  # noqa: E402
from vlmkit.errors import ConfigError, VlmkitError  # noqa: E402
from vlmkit.interfaces.memory_plan import PlannedLoad  # noqa: E402
from vlmkit.kit.checkpoint import Checkpoint  # noqa: E402
from vlmkit.plugins.registry import BuildContext  # noqa: E402
from vlmkit_quantized.formats import IntegerLayer  # noqa: E402
from vlmkit_quantized.weight import QuantizedLinear  # noqa: E402
from vlmkit_torch import loading, memory_plan  # noqa: E402
from vlmkit_torch.engine import torch_engine  # noqa: E402
from vlmkit_torch.loading import int4_linear, int8_linear, packed_layers  # noqa: E402
from vlmkit_torch.loading.int4_linear import (  # noqa: E402
    Int4Linear,
    TwoInt4Linear,
    packed,
    packed_twice,
)
from vlmkit_torch.loading.int8_linear import Int8Linear  # noqa: E402
from vlmkit_torch.loading.operator_linear import (  # noqa: E402
    OperatorLinear,
    has_operators,
    rows_to_expand,
)
from vlmkit_torch.loading.packed_layers import Timings  # noqa: E402
from vlmkit_torch.loading.reading import read_config, read_model  # noqa: E402
from vlmkit_torch.settings import EngineSettings  # noqa: E402
from vlmkit_torch.support import packed_forms  # noqa: E402
from vlmkit_torch.support.packed_forms import TRITON, Packing  # noqa: E402

pytestmark = pytest.mark.skipif(not has_operators(), reason="this torch has no operators")

Saved = Callable[[str], Path]
MIB = 2**20
PACKED = {"quantized_layers": "packed"}
ROWS_OF_8 = {"num_bits": 8, "strategy": "channel", "group_size": None}
METHODS: dict[str, tuple[Callable[..., Quantized], dict[str, Any]]] = {
    "gptq": (gptq.make, {"group_size": 32}),
    "gptq, any order": (
        gptq.make,
        {"group_size": 32, "version": 2, "is_symmetric": False, "is_ordered": True},
    ),
    "gptq, 3 bits": (gptq.make, {"group_size": 32, "bits": 3, "is_symmetric": False}),
    "awq": (awq.make, {"group_size": 32}),
    "compressed": (
        compressed.make,
        {"weights": {"symmetric": False, "group_size": 32}, "plain": "vision|visual"},
    ),
    "gptq, 8 bits": (
        gptq.make,
        {"group_size": 32, "bits": 8, "version": 2, "is_symmetric": False, "is_ordered": True},
    ),
    "gptq, 8 bits, rows": (gptq.make, {"group_size": -1, "bits": 8, "is_symmetric": False}),
    "int8 of bitsandbytes": (bitsandbytes.make_eight, {}),
    "int8 of compressed": (compressed.make, {"scheme": "int", "weights": ROWS_OF_8}),
    "Q8_0": (gguf_folders.make, {"kind": "Q8_0"}),
    "Q4_0": (gguf_folders.make, {"kind": "Q4_0"}),
}
KERNELS = {"gptq, 8 bits": TwoInt4Linear, "Q8_0": TwoInt4Linear} | dict.fromkeys(
    ("gptq, 8 bits, rows", "int8 of bitsandbytes", "int8 of compressed"), Int8Linear
)
"""The class of packed layers; that of other methods is for 4 bits."""
TEXT_ALONE = {"awq", "Q8_0", "Q4_0"}  # sizes of towers are no multiples of 32; GGUF has no towers
CASES = [
    pytest.param(
        method, family, marks=() if family == "llama" or method == "gptq" else pytest.mark.slow
    )
    for method in METHODS
    for family in ("llama", "phi3", "llava", "qwen2_5_vl")
    if method not in TEXT_ALONE or family in ("llama", "phi3")
]
"""Each method with one family and each family with one method run always."""


def weight(rows: int, columns: int, size: int, seed: int, **more: Any) -> QuantizedLinear:
    numbers = np.random.default_rng(seed)
    groups = columns // size
    bits = more.pop("bits", 4)
    return QuantizedLinear(
        codes=numbers.integers(0, 2**bits, (rows, columns)).astype(np.uint8),
        bits=bits,
        scales=numbers.uniform(0.001, 0.01, (rows, groups)).astype(np.float16).astype(np.float32),
        **{"zero_points": numbers.integers(0, 2**bits, (rows, groups)).astype(np.int16), **more},
    )


def values_of(layer: OperatorLinear) -> torch.Tensor:
    """Return the weights of a layer: its products with one column each."""
    return layer(torch.eye(layer.in_features, dtype=torch.bfloat16)).T.double()


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("size", [32, 64, 96, 128, 256, 512])
def test_a_packed_weight_differs_from_the_dense_one_by_bfloat16_alone(size: int, bits: int) -> None:
    columns = 2 * size
    numbers = np.random.default_rng(size)
    order = numbers.permutation(columns).astype(np.int32) // size
    for given in (None, order):
        made = weight(48, columns, size, bits, bits=bits, column_groups=given)
        layer = packed(made)
        assert layer is not None
        dense = torch.from_numpy(made.dense()).double()
        # Scale, zero and output are rounded to 8 bits, and the last but one to 16 steps of a scale.
        scales = torch.from_numpy(made.scales).double().amax()
        bound = 2**-8 * dense.abs() + 2**-8 * 16 * scales
        assert ((values_of(layer) - dense).abs() <= bound).all()


@pytest.mark.parametrize("size", [32, 128])
def test_products_are_within_the_bound_of_bfloat16_for_any_zero_points(size: int) -> None:
    made = weight(64, 512, size, seed=3)
    layer = packed(made)
    assert layer is not None
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(24, 512, generator=numbers).bfloat16() + 2  # sums over groups are not small
    dense = torch.from_numpy(made.dense()).double()
    exact = x.double() @ dense.T
    found, plain = layer(x).double(), (x @ dense.bfloat16().T).double()
    magnitude = x.double().abs() @ dense.abs().T
    # The scale, the product, and its sum with the second product are rounded to 8 bits each.
    assert ((found - exact).abs() / magnitude).max() <= 3.1 * 2**-9
    assert (found - exact).norm() <= 3 * (plain - exact).norm()


def test_scales_and_zeros_of_the_checkpoint_are_exact_where_bfloat16_holds_them() -> None:
    made = weight(32, 128, 32, seed=1)
    scales = np.full_like(made.scales, 2.0**-7)
    exact = QuantizedLinear(made.codes, 4, scales, made.zero_points)
    layer = packed(exact)
    assert layer is not None
    assert torch.equal(values_of(layer), torch.from_numpy(exact.dense()).double())


@pytest.mark.parametrize("bits", [5, 6, 8])
@pytest.mark.parametrize("size", [32, 96, 128, 512])
def test_a_packed_weight_of_8_bits_differs_from_the_dense_one_by_bfloat16_alone(
    size: int, bits: int
) -> None:
    columns = 2 * size
    order = np.random.default_rng(size).permutation(columns).astype(np.int32) // size
    for given in (None, order):
        made = weight(48, columns, size, bits, bits=bits, column_groups=given)
        layer = packed_twice(made)
        assert layer is not None
        dense = torch.from_numpy(made.dense()).double()
        # The scale and both products are rounded to 8 bits; a product may be of 272 steps.
        scales = torch.from_numpy(made.scales).double().amax()
        bound = 2**-7 * dense.abs() + 2**-8 * (272 + 16) * scales
        assert ((values_of(layer) - dense).abs() <= bound).all()


@pytest.mark.parametrize("rows", [1, 17, 48])
@pytest.mark.parametrize("columns", [32, 96, 544])
@pytest.mark.parametrize("zero", [128, 120, None])
def test_a_packed_weight_with_a_scale_for_each_row_differs_by_bfloat16_alone(
    columns: int, rows: int, zero: int | None
) -> None:
    zeros = {} if zero is None else {"zero_points": np.full((rows, 1), zero, np.int16)}
    made = weight(rows, columns, columns, seed=rows, bits=8, **zeros)
    layer = int8_linear.packed(made)
    assert layer is not None
    dense = torch.from_numpy(made.dense()).double()
    scales = torch.from_numpy(made.scales).double().amax()
    bound = 2.01 * 2**-8 * dense.abs() + (0 if zero == 128 else 2**-7 * 128 * scales)
    assert ((values_of(layer) - dense).abs() <= bound).all()


@pytest.mark.parametrize("pack", [packed_twice, int8_linear.packed])
def test_products_of_8_bits_are_within_the_bound_of_bfloat16(pack: Any) -> None:
    is_grouped = pack is packed_twice
    zeros = np.full((1, 1), 128, np.int16)
    made = weight(64, 512, 32 if is_grouped else 512, seed=3, bits=8, zero_points=zeros)
    layer = pack(made)
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(24, 512, generator=numbers).bfloat16() + 2
    dense = torch.from_numpy(made.dense()).double()
    exact = x.double() @ dense.T
    found, plain = layer(x).double(), (x @ dense.bfloat16().T).double()
    magnitude = x.double().abs() @ dense.abs().T
    assert ((found - exact).abs() / magnitude).max() <= 3.1 * 2**-9
    assert (found - exact).norm() <= 3 * (plain - exact).norm()


def test_integers_of_8_bits_are_exact_where_bfloat16_holds_the_scales() -> None:
    zeros = np.full((1, 1), 128, np.int16)
    made = weight(32, 128, 128, seed=1, bits=8, zero_points=zeros)
    exact = QuantizedLinear(made.codes, 8, np.full_like(made.scales, 2.0**-7), zeros)
    for layer in (int8_linear.packed(exact), packed_twice(exact)):
        assert layer is not None
        assert torch.equal(values_of(layer), torch.from_numpy(exact.dense()).double())


KINDS = ("zeros that round", "any order", "halves", "halves, any order", "rows", "rows with zeros")


def layers_to_expand() -> dict[str, tuple[OperatorLinear | None, QuantizedLinear]]:
    """Return layers of each kind, with 80 outputs: a whole block of an operator and a rest."""
    order = np.random.default_rng(0).permutation(256).astype(np.int32) // 64
    middle = {"zero_points": np.full((1, 1), 128, np.int16)}
    given = {
        "zeros that round": (packed, weight(80, 256, 64, seed=1)),
        "any order": (packed, weight(80, 256, 64, seed=2, column_groups=order)),
        "halves": (packed_twice, weight(80, 256, 32, seed=3, bits=8, **middle)),
        "halves, any order": (
            packed_twice,
            weight(80, 256, 64, seed=4, bits=8, column_groups=order),
        ),
        "rows": (int8_linear.packed, weight(80, 256, 256, seed=5, bits=8, **middle)),
        "rows with zeros": (int8_linear.packed, weight(80, 256, 256, seed=6, bits=8)),
    }
    return {name: (pack(made), made) for name, (pack, made) in given.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_many_rows_are_multiplied_by_expanded_weights(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, made = layers_to_expand()[kind]
    assert layer is not None
    if not layer.can_expand:
        pytest.skip("this CPU packs 4 bits in another layout")
    layer.expanded_from = 5
    monkeypatch.setattr(layer, "product", lambda _: pytest.fail("few rows"))
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    dense = torch.from_numpy(made.dense()).double()
    error = (layer(x).double() - x.double() @ dense.T).abs()
    assert (error <= 2**-7 * (x.double().abs() @ dense.abs().T)).all()
    monkeypatch.undo()
    monkeypatch.setattr(layer, "expanded_product", lambda _: pytest.fail("many rows"))
    assert layer(x[:4]).shape == (4, 80)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_have_no_outputs(kind: str) -> None:
    layer, _ = layers_to_expand()[kind]
    assert layer is not None
    for shape in ((0,), (0, 3), (2, 0)):
        assert layer(torch.empty(*shape, 256, dtype=torch.bfloat16)).shape == (*shape, 80)


def test_the_number_of_rows_to_expand_is_measured() -> None:
    for layer, _ in layers_to_expand().values():
        assert layer is not None
        num = rows_to_expand(layer)
        assert num is None or num >= 16


def test_weights_in_an_unknown_layout_are_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int4_linear, "BLOCK_ROWS", (16,))  # as on a CPU with other instructions
    layer, twice = packed(weight(80, 256, 64, seed=1)), packed_twice(weight(80, 64, 64, 0, bits=8))
    for each in (layer, twice):
        assert each is not None
        assert not each.can_expand
        assert rows_to_expand(each) is None


@pytest.mark.parametrize("block_rows", [64, 32])
def test_the_layouts_of_all_instructions_are_read(block_rows: int) -> None:
    """Also that of instructions which this CPU lacks, packed here as torch does."""
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, 16, (80, 6)))
    packed_blocks = []
    for first in range(0, 80, block_rows):
        block = codes[first : first + block_rows].T
        half = block.shape[1] // 2
        is_whole = len(codes[first:]) >= block_rows
        low, high = (
            (block[:, :half], block[:, half:]) if is_whole else (block[:, ::2], block[:, 1::2])
        )
        packed_blocks.append((high * 16 + low).flatten())
    octets = torch.cat(packed_blocks).to(torch.uint8).view(80, 3)
    found = torch.cat([block.T for _, block in int4_linear.blocks(octets, block_rows)])
    assert torch.equal(found, codes.to(torch.uint8))


def test_the_layout_of_this_cpu_is_known() -> None:
    if torch.backends.cpu.get_cpu_capability() not in {"AVX2", "AVX512"}:
        pytest.skip("this CPU has neither AVX2 nor AVX-512")
    assert int4_linear.known_block_rows()


def test_a_prompt_is_computed_by_expanded_weights_as_by_packed_ones(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gptq.make(saved("llama"), tmp_path, group_size=32).folder
    asked = runner.requests("llama")
    rows = []
    for first in (None, 1):
        monkeypatch.setattr(packed_layers, "rows_to_expand", lambda layer, first=first: first)
        with pipeline.load(folder, sizes={**PACKED, "dtype": "bfloat16"}) as model:
            streamed = pipeline.stream_all(model, asked)
        rows.append([[sample.logprob for sample in samples[:1]] for _, samples in streamed])
    assert np.abs(np.array(rows[0]) - np.array(rows[1])).max() < 0.1


@pytest.mark.parametrize(
    ("pack", "made"),
    [
        (packed_twice, weight(20, 64, 32, seed=0, bits=8)),
        (packed_twice, weight(32, 64, 16, seed=0, bits=8)),
        (packed_twice, weight(32, 64, 32, seed=0, bits=4)),
        (int8_linear.packed, weight(32, 64, 32, seed=0, bits=8)),
        (int8_linear.packed, weight(32, 64, 64, seed=0, bits=4)),
        (int8_linear.packed, weight(32, 100, 100, seed=0, bits=8)),
        (int8_linear.packed, weight(32, 64, 64, seed=0, bits=8, offsets=np.ones((32, 1), "f4"))),
    ],
    ids=["rows", "group size", "bits", "groups", "bits of rows", "columns", "offsets"],
)
def test_what_the_operators_for_8_bits_cannot_hold_stays_dense(
    pack: Any, made: QuantizedLinear
) -> None:
    assert pack(made) is None


@pytest.mark.parametrize(
    "made",
    [
        weight(20, 64, 32, seed=0),
        weight(32, 64, 16, seed=0),
        weight(32, 64, 32, seed=0, bits=8),
        weight(32, 64, 32, seed=0, zero_points=None, levels=np.linspace(-1, 1, 16, dtype="f4")),
        weight(32, 64, 32, seed=0, offsets=np.ones((32, 2), np.float32)),
        weight(32, 64, 32, seed=0, column_groups=(np.arange(64) // 40).astype(np.int32)),
    ],
    ids=["rows", "group size", "bits", "levels", "offsets", "uneven groups"],
)
def test_what_the_operator_cannot_hold_stays_dense(made: QuantizedLinear) -> None:
    assert packed(made) is None


def engine_of(folder: Path, **settings: Any) -> torch_engine.TorchEngine:
    tiny = {"device": "cpu", "cache_tokens": 256, "block_tokens": 4, "max_chunk_tokens": 64}
    chosen = EngineSettings(**{**tiny, **PACKED, **settings})
    return torch_engine.build(BuildContext("", Checkpoint("model", folder), chosen))


def layers_of(engine: torch_engine.TorchEngine) -> list[OperatorLinear]:
    return [it for it in engine._views.model.modules() if isinstance(it, OperatorLinear)]


def paths_of(engine: torch_engine.TorchEngine) -> set[str]:
    model = engine._views.model
    return {name for name, module in model.named_modules() if isinstance(module, OperatorLinear)}


@pytest.mark.parametrize(("method", "family"), CASES)
def test_layers_stay_packed_and_answers_are_those_of_dense_ones(
    method: str, family: str, saved: Saved, tmp_path: Path
) -> None:
    make, how = METHODS[method]
    folder = make(saved(family), tmp_path, **how).folder
    engine = engine_of(folder)
    kinds = {type(layer) for layer in layers_of(engine)}
    engine.close()
    assert kinds == {KERNELS.get(method, Int4Linear)}
    asked = runner.requests(family)
    rows = {}
    for layers in ("packed", "dense"):
        sizes = {"quantized_layers": layers, "dtype": "bfloat16"}
        with pipeline.load(folder, sizes=sizes) as model:
            streamed = pipeline.stream_all(model, asked)
        rows[layers] = [[sample.logprob for sample in samples[:1]] for _, samples in streamed]
    found, wanted = (np.array(rows[layers]) for layers in ("packed", "dense"))
    assert np.abs(found - wanted).max() < 0.1


def test_layers_of_the_decoder_are_packed_and_the_tower_and_the_head_are_not(
    saved: Saved, tmp_path: Path
) -> None:
    engine = engine_of(gptq.make(saved("llava"), tmp_path, group_size=32).folder)
    found = paths_of(engine)
    assert engine.limits.precision == "bfloat16, packed layers"
    assert any(path.endswith("q_proj") for path in found)
    assert any(path.endswith("down_proj") for path in found)
    assert not any("vision" in path or "head" in path for path in found)
    engine.close()


def test_merged_experts_stay_dense_and_attention_is_packed(saved: Saved, tmp_path: Path) -> None:
    engine = engine_of(gptq.make(saved("mixtral"), tmp_path, group_size=32).folder)
    found = paths_of(engine)
    assert found
    assert all("self_attn" in path for path in found)
    engine.close()


def test_layers_are_dense_where_packed_ones_are_slower(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_forms, "has_kernel", lambda: True)
    folder = gptq.make(saved("llama"), tmp_path, group_size=32).folder
    chosen = {"quantized_layers": "auto", "dtype": "bfloat16"}
    for name, is_faster in (("up_proj", lambda layer: layer.rows > layer.columns), ("", bool)):
        monkeypatch.setattr(Timings, "is_faster", lambda _, layer, it=is_faster: it(layer))
        engine = engine_of(folder, **chosen)
        assert {path for path in paths_of(engine) if name in path}
        assert all(layer.out_features > layer.in_features for layer in layers_of(engine)) == (
            name != ""
        )
        engine.close()
    monkeypatch.setattr(Timings, "is_faster", lambda *_: False)
    engine = engine_of(folder, **chosen)
    assert not paths_of(engine)
    engine.close()


@pytest.mark.parametrize("product", ["product", "expanded_product"])
def test_layers_stay_dense_where_the_operator_computes_other_values(
    product: str,
    saved: Saved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if product == "expanded_product" and not int4_linear.known_block_rows():
        pytest.skip("this CPU packs 4 bits in another layout")
    right = getattr(Int4Linear, product)
    monkeypatch.setattr(Int4Linear, product, lambda self, rows: 1.1 * right(self, rows))
    engine = engine_of(gptq.make(saved("llama"), tmp_path, group_size=32).folder)
    assert not paths_of(engine)
    assert "torch's 4-bit operator computes other values" in caplog.text
    engine.close()


def test_timings_compare_both_forms_of_any_size() -> None:
    timings = Timings()
    for rows, columns, groups, bits in ((48, 64, 2, 4), (256, 512, 1, 8), (64, 128, 2, 8)):
        layer = IntegerLayer(rows, columns, groups, bits)
        assert timings.is_faster(layer) in (True, False)
    assert not timings.is_faster(IntegerLayer(32, 48, 3, 8))  # which no operator can hold


def test_a_torch_without_the_operator_expands_the_layers(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_layers, "has_operators", lambda: False)
    monkeypatch.setattr(packed_forms, "has_kernel", lambda: True)
    folder = gptq.make(saved("llama"), tmp_path, group_size=32).folder
    engine = engine_of(folder, quantized_layers="auto", dtype="bfloat16")
    assert not paths_of(engine)
    engine.close()
    with pytest.raises(ConfigError, match="later torch"):
        engine_of(folder)


@pytest.mark.parametrize("method", METHODS)
def test_the_plan_counts_the_bytes_of_packed_layers(
    saved: Saved, tmp_path: Path, method: str
) -> None:
    make, how = METHODS[method]
    folder = make(saved("llama"), tmp_path, **how).folder
    settings = EngineSettings(device="cpu", cache_tokens=256, **PACKED)
    context = BuildContext("", Checkpoint("model", folder), settings)
    plan = memory_plan.plan_engine(context, PlannedLoad(context_tokens=100))
    (planned,) = [need.num_bytes for need in plan.needs if need.name == "weights"]
    engine = engine_of(folder)
    model = engine._views.model
    buffers = [each for name, each in model.named_buffers() if not name.endswith(".order")]
    found = sum(each.nbytes for each in [*model.parameters(), *buffers])
    assert planned == pytest.approx(found, rel=0.05)  # an order of columns is small in large layers
    engine.close()


def test_packed_layers_are_refused_where_there_are_none(saved: Saved, tmp_path: Path) -> None:
    for folder in (
        saved("llama"),
        bitsandbytes.make(saved("llama"), tmp_path).folder,  # codes that stand for floats
    ):
        with pytest.raises(ConfigError, match="quantized_layers"):
            engine_of(folder)
    folder = gptq.make(saved("llama"), tmp_path / "4", group_size=32).folder
    with pytest.raises(ConfigError, match="float32"):
        engine_of(folder, dtype="float32")


def test_a_contradictory_layer_is_refused_by_name(saved: Saved, tmp_path: Path) -> None:
    folder = gptq.make(saved("llama"), tmp_path, group_size=32).folder
    name = next(name for name in folders.tensors(folder) if name.endswith("down_proj.scales"))
    folders.change(folder, lambda stored: stored[name].fill_(float("inf")))
    with pytest.raises(VlmkitError, match=name.removesuffix(".scales")):
        engine_of(folder)


def test_packed_layers_on_a_cuda_device_need_triton(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vlmkit_torch.loading.triton_linear", None)
    monkeypatch.delattr(loading, "triton_linear", raising=False)
    folder = gptq.make(saved("llama"), tmp_path, group_size=32).folder
    with pretended_cuda():
        context = BuildContext("", Checkpoint("m", folder), EngineSettings(device="cuda", **PACKED))
        plan = memory_plan.plan_engine(context, PlannedLoad(context_tokens=64, num_sequences=1))
        dense = memory_plan.plan_engine(
            BuildContext("", Checkpoint("m", folder), EngineSettings(device="cuda")),
            PlannedLoad(context_tokens=64, num_sequences=1),
        )
        with pytest.raises(ConfigError, match="needs the package triton on a GPU"):
            engine_of(folder, device="cuda", dtype="float16")
    assert plan.needs[0].num_bytes < dense.needs[0].num_bytes


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="nox -s triton runs it")
@pytest.mark.parametrize("family", ["llama", "phi3", "llava"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_layers_for_the_triton_kernel_have_the_logits_of_dense_ones(
    bits: int, family: str, saved: Saved, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    from vlmkit_torch.loading.triton_linear import TritonLinear

    folder = gptq.make(saved(family), tmp_path, group_size=32, bits=bits).folder
    checkpoint = Checkpoint("model", folder)

    def read(packing: Packing | None) -> Any:
        return read_model(checkpoint, read_config(checkpoint), torch.float32, None, packing)

    layers = TRITON.layers_of(checkpoint)
    packed_model, dense = read(Packing(TRITON, layers, is_timed=False)), read(None)
    num_packed = sum(isinstance(it, TritonLinear) for it in packed_model.modules())
    assert num_packed >= 4 * dense.config.get_text_config().num_hidden_layers
    tokens = torch.arange(3, 30)[None]
    with torch.no_grad():
        found, expected = packed_model(tokens).logits, dense(tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_packed_layers_takes_little_more_than_they_do(tmp_path: Path) -> None:
    """A process reads layers that take 132 MiB in bfloat16, and 36 MiB when packed."""
    first, folder = tmp_path / "first", tmp_path / "model"
    write_same_integers(first, hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    write_same_integers(folder, hidden_size=1024, intermediate_size=6144, num_hidden_layers=3)
    added = {how: peak_bytes(first, folder, how) for how in ("packed", "dense")}
    # The layers themselves, the mapped file, and ten times the numbers of the largest layer.
    assert added["packed"] < 36 * MIB + 36 * MIB + 10 * 6 * MIB
    assert added["dense"] > added["packed"] + 60 * MIB


def write_same_integers(folder: Path, **shape: int) -> None:
    """Write a model of GPTQ layers whose integers are all the same."""
    config = LlamaConfig(
        vocab_size=64, num_attention_heads=8, num_key_value_heads=8, dtype=torch.bfloat16, **shape
    )
    weights: dict[str, torch.Tensor] = {}
    with torch.device("meta"):
        shapes = LlamaForCausalLM(config).state_dict()
    for name, tensor in shapes.items():
        if "proj" not in name:
            weights[name] = torch.ones(tensor.shape, dtype=torch.bfloat16)
            continue
        layer, (rows, columns) = name.removesuffix(".weight"), tensor.shape
        weights[f"{layer}.qweight"] = torch.full(
            (columns // 8, rows), 0x12345678, dtype=torch.int32
        )
        weights[f"{layer}.qzeros"] = torch.full((columns // 128, rows // 8), 0x77777777).int()
        weights[f"{layer}.scales"] = torch.full((columns // 128, rows), 0.001).half()
    folder.mkdir()
    folders.write(folder, weights)
    config.quantization_config = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    config.quantization_config |= {"sym": True, "desc_act": False, "checkpoint_format": "gptq"}
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)


def peak_bytes(first: Path, folder: Path, how: str) -> int:
    """Return how much the peak of resident memory grows while a process reads a model.

    The process reads another model first, so what libraries and kernels take is not counted: it
    differs from one CPU to the next.
    """
    script = """if True:
        import sys, torch
        from pathlib import Path
        from vlmkit.kit.checkpoint import Checkpoint
        from vlmkit_torch.loading.reading import read_config, read_model
        from vlmkit_torch.support.packed_forms import CPU, Packing
        torch.set_num_threads(1)

        def read(folder):
            checkpoint = Checkpoint("model", Path(folder))
            config, layers = read_config(checkpoint), CPU.layers_of(checkpoint)
            packing = Packing(CPU, layers, is_timed=False) if sys.argv[3] == "packed" else None
            return read_model(checkpoint, config, torch.bfloat16, None, packing)

        def resident(what):
            lines = Path("/proc/self/status").read_text().splitlines()
            return 1024 * int(next(line for line in lines if line.startswith(what)).split()[1])

        read(sys.argv[1])
        before = resident("VmRSS")
        model = read(sys.argv[2])
        print(resident("VmHWM") - before)
        """
    command = [sys.executable, "-c", script, str(first), str(folder), how]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return int(ended.stdout.split()[-1])
