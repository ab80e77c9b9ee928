"""The arguments of torch's attention for sequences of different lengths.

The function runs on CUDA devices alone. So the backend calls a function here that computes, from
the same arguments, what torch's documentation says; and torch's own checks of shapes, with tensors
that have no numbers.
"""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from random_attention import agree_on_random_steps  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from vlmkit_torch.attention.layer_kind import LayerKind  # noqa: E402
from vlmkit_torch.attention.varlen import CAPABILITIES, VarlenAttention  # noqa: E402
from vlmkit_torch.testing import TorchAttentionContract  # noqa: E402
from vlmkit_torch.testing.attention_case import (  # noqa: E402
    AttentionCase,
    Part,
    needs_of,
    plain_layer,
)

pytestmark = pytest.mark.torch
HERE = replace(CAPABILITIES, devices=frozenset({"cpu"}), dtypes=frozenset({"float32", "bfloat16"}))
CPU = torch.device("cpu")


def written_out(
    query: Any,
    keys: Any,
    values: Any,
    starts: Any,
    key_starts: None,
    most_rows: int,
    most_tokens: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Any,
    block_table: Any,
    num_splits: int,
) -> Any:
    """Attend sequence by sequence; the last new token sees the last key."""
    assert key_starts is None
    assert num_splits == 1
    assert window_size[1] == 0
    for array in (starts, seqused_k, block_table):
        assert array.dtype == torch.int32
    counts = starts.diff()
    assert most_rows >= counts.max()
    assert most_tokens >= seqused_k.max()
    parts = []
    for row, (count, length) in enumerate(zip(counts.tolist(), seqused_k.tolist(), strict=True)):
        own = query[starts[row] : starts[row + 1]].transpose(0, 1)
        key, value = (
            pool[block_table[row].long()].flatten(0, 1)[:length].transpose(0, 1)
            for pool in (keys, values)
        )
        if enable_gqa:
            key, value = (
                each.repeat_interleave(own.shape[0] // each.shape[0], 0) for each in (key, value)
            )
        place = torch.arange(length - count, length)[:, None]
        column = torch.arange(length)[None]
        is_seen = column <= place
        if window_size[0] >= 0:
            is_seen &= column >= place - window_size[0]
        scores = (own @ key.transpose(1, 2)).float() * scale
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
        parts.append((weights.to(value.dtype) @ value).transpose(0, 1))
    return torch.cat(parts)


class TestVarlenAttention(TorchAttentionContract):
    def make(self) -> VarlenAttention:
        return VarlenAttention(written_out, HERE)


def test_random_steps_agree_with_attention_written_out() -> None:
    agree_on_random_steps(lambda: VarlenAttention(written_out, HERE), 100, seed=0)


@pytest.mark.slow
def test_ten_thousand_random_steps_agree_with_attention_written_out() -> None:
    agree_on_random_steps(lambda: VarlenAttention(written_out, HERE), 10_000, seed=1)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2)])
def test_torchs_own_checks_accept_the_arguments(
    window: int | None, heads: int, kv_heads: int
) -> None:
    """The checks of names, shapes and heads; the kernel does not run."""
    from torch.nn.attention.varlen import varlen_attn

    def checked(*arguments: Any, **more: Any) -> Any:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            given = [
                mode.from_tensor(each) if isinstance(each, torch.Tensor) else each
                for each in arguments
            ]
            named = {
                name: mode.from_tensor(each) if isinstance(each, torch.Tensor) else each
                for name, each in more.items()
            }
            found.append(varlen_attn(*given, **named))
        return arguments[0]

    found: list[Any] = []
    kind = LayerKind("sliding_attention", window=window)
    layer = replace(
        plain_layer(torch.bfloat16, 64), kind=kind, num_heads=heads, num_kv_heads=kv_heads
    )
    backend = VarlenAttention(checked, HERE)
    backend.prepare(needs_of([layer], CPU))
    case = AttentionCase(layer, [Part(7, 1), Part(30, 1), Part(3, 6)], CPU, num_decodes=2)
    case.run(backend)
    assert found[0].shape == (8, heads, 64)


def test_the_arrays_of_a_step_are_converted_once() -> None:
    seen: list[Any] = []

    def noted(query: Any, *_: Any, **more: Any) -> Any:
        seen.append(more["block_table"])
        return query

    layer = plain_layer(torch.float32, 8)
    backend = VarlenAttention(noted, HERE)
    backend.prepare(needs_of([layer], CPU))
    case = AttentionCase(layer, [Part(7, 1)], CPU, num_decodes=1)
    call = case.call(backend.plan(case.tokens, layer.kind, case.uploads))
    for _ in range(2):
        backend.attend(call)
    assert seen[0] is seen[1]
