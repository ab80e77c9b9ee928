"""Quantized linear layers: the allowed effects of rounding."""

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("torch")
pytest.importorskip("onnx_ir")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

import torch  # noqa: E402
from torch import nn  # noqa: E402

from vlmkit_onnx.export.quantize import BLOCKS, BlockLinear, TokenLinear  # noqa: E402

SIZES = st.tuples(st.integers(1, 80), st.integers(1, 9), st.booleans(), st.integers(0, 2**31))
FEW = settings(max_examples=40)


def _linear(size: tuple[int, int, bool, int]) -> tuple[nn.Linear, torch.Generator]:
    width, outputs, has_bias, seed = size
    random = torch.Generator().manual_seed(seed)
    linear = nn.Linear(width, outputs, bias=has_bias).requires_grad_(requires_grad=False)
    linear.weight.copy_(torch.randn(outputs, width, generator=random))
    return linear, random


@FEW
@given(SIZES)
def test_a_token_layer_is_off_by_half_a_step_of_each_factor_at_most(
    size: tuple[int, int, bool, int],
) -> None:
    linear, random = _linear(size)
    inputs = torch.randn(3, linear.in_features, generator=random)
    left, right = inputs.abs(), linear.weight.abs()
    steps = (left.amax(1)[:, None] / 254 + 1e-6, right.amax(1)[:, None] / 254 + 1e-6)
    bound = steps[0] * right.sum(1) + (left + steps[0]).sum(1)[:, None] * steps[1].t()
    off = (TokenLinear(linear)(inputs) - linear(inputs)).abs()
    assert (off <= bound * 1.001 + 1e-5).all()


@FEW
@given(SIZES, st.integers(1, 6))
def test_a_row_of_a_token_layer_depends_on_nothing_else_in_the_batch(
    size: tuple[int, int, bool, int], rows: int
) -> None:
    linear, random = _linear(size)
    layer = TokenLinear(linear)
    inputs = torch.randn(rows, linear.in_features, generator=random)
    inputs[1:] *= 1000
    assert torch.equal(layer(inputs)[:1], layer(inputs[:1]))


@FEW
@given(SIZES, st.sampled_from([4, 8]))
def test_block_weights_are_off_by_no_more_than_plain_rounding(
    size: tuple[int, int, bool, int], bits: int
) -> None:
    linear, _ = _linear(size)
    weight = BlockLinear.rounded(linear, bits)._weight(slice(None))
    assert weight.shape == linear.weight.shape
    steps = (1 << bits) - 1
    blocks = torch.split(linear.weight, BLOCKS[bits], 1), torch.split(weight, BLOCKS[bits], 1)
    for before, after in zip(*blocks, strict=True):
        reach = before.amax(1).clamp_min(0) - before.amin(1).clamp_max(0)
        # Half a step, and half of another at the ends, because zero has its own code.
        assert ((after - before).norm(dim=1) <= before.shape[1] ** 0.5 * reach / steps).all()


@pytest.mark.parametrize(("bits", "bound"), [(4, 0.080), (8, 0.0055)])
def test_block_weights_are_nearer_than_with_a_scale_alone(bits: int, bound: float) -> None:
    # Expected errors for 32 normal numbers with a scale but no zero: 0.086 and 0.0053. For 8 bits,
    # blocks are twice as long.
    random = torch.Generator().manual_seed(0)
    linear = nn.Linear(1024, 64, bias=False).requires_grad_(requires_grad=False)
    linear.weight.copy_(torch.randn(64, 1024, generator=random))
    off = BlockLinear.rounded(linear, bits)._weight(slice(None)) - linear.weight
    assert off.norm() / linear.weight.norm() < bound


@FEW
@given(SIZES, st.sampled_from([4, 8]))
def test_block_weights_that_are_multiples_of_the_scale_are_exact(
    size: tuple[int, int, bool, int], bits: int
) -> None:
    linear, random = _linear(size)
    middle = 1 << (bits - 1)
    steps = torch.randint(-middle, middle, linear.weight.shape, generator=random)
    block = BLOCKS[bits]
    steps[:, 0::block], steps[:, 1::block] = -middle, middle - 1
    linear.weight.copy_(steps / 64)
    kept = BlockLinear.rounded(linear, bits)._weight(slice(None))
    assert torch.allclose(kept, linear.weight, rtol=1e-6, atol=0)


def test_layers_of_zeros_return_their_bias() -> None:
    linear = nn.Linear(40, 3).requires_grad_(requires_grad=False)
    linear.weight.zero_()
    rounded = BlockLinear.rounded
    for layer in (TokenLinear(linear), rounded(linear, 4), rounded(linear, 8)):
        for inputs in (torch.zeros(2, 40), torch.ones(2, 40)):
            assert torch.equal(layer(inputs), linear.bias.expand(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_are_quantized_from_half_precision_too(dtype: torch.dtype) -> None:
    linear = nn.Linear(64, 5000).to(dtype).requires_grad_(requires_grad=False)
    whole = nn.Linear(64, 5000).requires_grad_(requires_grad=False)
    whole.weight.copy_(linear.weight)
    whole.bias.copy_(linear.bias)
    inputs = torch.ones(1, 64)
    assert torch.equal(TokenLinear(linear)(inputs), TokenLinear(whole)(inputs))
    assert torch.equal(
        BlockLinear.rounded(linear, 4)(inputs), BlockLinear.rounded(whole, 4)(inputs)
    )
