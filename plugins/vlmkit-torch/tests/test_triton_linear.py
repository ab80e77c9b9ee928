"""The Triton kernel of packed linear layers: in Triton's interpreter, and compiled for GPUs.

Neither needs a GPU. ``nox -s triton`` runs both, since the package is large. A process has one of
them.
"""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from vlmkit.errors import EngineError  # noqa: E402
from vlmkit_quantized.weight import QuantizedLinear  # noqa: E402
from vlmkit_torch.loading import triton_linear  # noqa: E402
from vlmkit_torch.loading.triton_linear import TritonLinear, check, packed  # noqa: E402

ROWS, COLUMNS = 70, 128  # more outputs than a tile, and no multiple of one
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="needs TRITON_INTERPRET=1")
compiled = pytest.mark.skipif(IS_INTERPRETED, reason="needs the compiler: no TRITON_INTERPRET")
# Of the largest output. The interpreter cuts bfloat16 off where a GPU rounds.
ERRORS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 2e-2}


def weight(bits: int, kind: str, *, num_groups: int = 2, **more: object) -> QuantizedLinear:
    random = np.random.default_rng(bits)
    shape = (ROWS, num_groups)
    zeros = levels = None
    if kind == "levels":
        levels = random.normal(size=2**bits).astype(np.float32)
    elif kind == "symmetric":
        zeros = np.full((1, 1), 2 ** (bits - 1), np.int16)
    else:
        zeros = random.integers(0, 2**bits, shape).astype(np.int16)
    codes = random.integers(0, 2**bits, (ROWS, COLUMNS), dtype=np.uint8)
    scales = random.uniform(0.01, 0.1, shape).astype(np.float32)
    return QuantizedLinear(codes, bits, scales, zeros, levels, **more)


def shuffled_groups(num_groups: int) -> np.ndarray:
    groups = np.repeat(np.arange(num_groups, dtype=np.int32), COLUMNS // num_groups)
    return np.random.default_rng(0).permutation(groups)


def layer_of(held: QuantizedLinear) -> TritonLinear:
    layer = packed(held)
    assert layer is not None
    return layer


def assert_equals_dense(held: QuantizedLinear, dtype: torch.dtype, num_rows: int = 3) -> None:
    layer = layer_of(held)
    generator = torch.Generator().manual_seed(0)
    layer.bias = torch.nn.Parameter(torch.randn(ROWS, generator=generator).to(dtype))
    inputs = torch.randn(2, num_rows, COLUMNS, generator=generator).to(dtype)
    dense = torch.from_numpy(held.dense()).to(dtype)
    expected = inputs.double() @ dense.double().T + layer.bias.double()
    with torch.no_grad():
        outputs = layer(inputs)
    assert outputs.dtype == dtype
    assert outputs.shape == (2, num_rows, ROWS)
    error = (outputs.double() - expected).abs().max() / expected.abs().max()
    assert error < ERRORS[dtype]


@interpreted
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("kind", ["symmetric", "asymmetric", "levels"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_layer_computes_what_its_dense_form_does(
    bits: int, kind: str, dtype: torch.dtype
) -> None:
    assert_equals_dense(weight(bits, kind), dtype)


@interpreted
def test_more_rows_than_a_tile_are_computed() -> None:
    assert_equals_dense(weight(4, "asymmetric"), torch.float32, num_rows=70)


@interpreted
def test_columns_may_be_in_groups_of_any_order() -> None:
    assert_equals_dense(weight(4, "asymmetric", column_groups=shuffled_groups(2)), torch.float32)


@interpreted
def test_a_global_scale_multiplies_each_weight() -> None:
    scale = np.float32(0.37)
    assert_equals_dense(weight(4, "levels", global_scale=scale), torch.float32)


@interpreted
def test_the_check_at_load_finds_wrong_values(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up_proj = layer_of(weight(4, "asymmetric"))

    model = Model()
    check(model, torch.float32)
    model.up_proj.bias = torch.nn.Parameter(torch.ones(ROWS, dtype=torch.bfloat16))
    check(model, torch.bfloat16)
    monkeypatch.setattr(TritonLinear, "forward", lambda layer, rows: rows[:, :1].expand(-1, ROWS))
    with pytest.raises(EngineError, match="'up_proj' on device 'cpu'"):
        check(model, torch.float32)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("kind", ["symmetric", "asymmetric", "levels"])
def test_a_layer_expands_to_the_values_of_its_weight(bits: int, kind: str) -> None:
    for more in ({}, {"column_groups": shuffled_groups(2)}, {"global_scale": np.float32(0.37)}):
        held = weight(bits, kind, **more)
        assert torch.equal(layer_of(held).dense(), torch.from_numpy(held.dense()))


def test_a_weight_stays_packed() -> None:
    layer = layer_of(weight(4, "symmetric"))
    assert layer.codes.numel() * layer.codes.itemsize == ROWS * COLUMNS // 2


@pytest.mark.parametrize(
    "held",
    [
        weight(4, "symmetric", num_groups=8),
        weight(4, "symmetric", offsets=np.zeros((ROWS, 2), np.float32)),
        weight(4, "symmetric", column_groups=np.zeros(COLUMNS, np.int32)),
    ],
    ids=["groups of 16", "offsets", "unequal groups"],
)
def test_what_the_kernel_cannot_hold_stays_dense(held: QuantizedLinear) -> None:
    assert packed(held) is None


@compiled
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("architecture", [75, 80, 90, 100])
def test_the_kernel_compiles_for_gpus(architecture: int, dtype: str) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = dict.fromkeys(("num_rows", "num_outputs", "num_inputs", "group_inputs"), "i32")
    signature |= {"inputs": f"*{dtype}", "outputs": f"*{dtype}", "codes": "*u8"}
    signature |= dict.fromkeys(("scales", "zeros", "levels"), "*fp32")
    signature["global_scale"] = "fp32"
    constants = {"has_nibbles": True, "has_levels": False, "has_global_scale": True}
    constants |= {"tile_rows": 16, "tile_outputs": 64, "is_interpreted": False}
    function = triton_linear._product
    source = ASTSource(
        fn=function,
        signature={name: signature.get(name, "constexpr") for name in function.arg_names},
        constexprs=constants,
    )
    target = GPUTarget("cuda", architecture, 32)
    kernel = triton.compile(source, target=target, options={"enable_fp_fusion": True})
    assert kernel.asm["cubin"]
    if architecture >= 80 and dtype != "fp32":
        assert "mma" in kernel.asm["ptx"]  # tensor cores
