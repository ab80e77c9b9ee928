"""The Triton kernel of decodes: in Triton's interpreter, and compiled for GPUs.

Neither needs a GPU. ``nox -s triton`` runs both, since the package is large. A process has one of
them.
"""

import os
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from random_attention import KINDS, agree_on_random_steps  # noqa: E402

from vlmkit_torch.attention import load_check, triton_decode  # noqa: E402
from vlmkit_torch.attention.layer_kind import LayerKind  # noqa: E402
from vlmkit_torch.attention.triton_decode import TritonAttention  # noqa: E402
from vlmkit_torch.testing import TorchAttentionContract  # noqa: E402
from vlmkit_torch.testing.attention_case import (  # noqa: E402
    AttentionCase,
    Part,
    needs_of,
    plain_layer,
)

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="needs TRITON_INTERPRET=1")
compiled = pytest.mark.skipif(IS_INTERPRETED, reason="needs the compiler: no TRITON_INTERPRET")
CPU = torch.device("cpu")
SMALL = {"PART_TOKENS": 16, "TILE_TOKENS": 16}
"""Sizes with which short sequences have several parts."""


@interpreted
class TestTritonAttention(TorchAttentionContract):
    device = "cpu"

    def make(self) -> TritonAttention:
        return TritonAttention()


@interpreted
def test_random_steps_agree_with_attention_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(triton_decode, name, value)
    agree_on_random_steps(TritonAttention, 60, seed=0)


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_ten_thousand_random_steps_agree_with_attention_written_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(triton_decode, name, value)
    agree_on_random_steps(TritonAttention, 1_000, seed)


@interpreted
def test_a_row_does_not_depend_on_the_other_rows_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(triton_decode, name, value)
    layer = plain_layer(torch.float32, 64)
    backend = TritonAttention()
    backend.prepare(needs_of([layer], CPU))
    parts = [Part(first, 1) for first in (1, 50, 17)]
    case = AttentionCase(layer, parts, CPU, num_decodes=3)
    together = case.run(backend)
    tokens = case.tokens
    for row, sequence in enumerate(tokens.sequences):
        alone = replace(tokens, sequences=(sequence,), num_decodes=1)
        plan = backend.plan(alone, layer.kind, case.uploads)
        query = case.query[:, row : row + 1]
        found = triton_decode.decode(query, case.pools, plan.decodes, case.call(plan).parameters)
        assert torch.equal(found[0], together[row])


@interpreted
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_check_at_load_accepts_the_kernel(kind: LayerKind, is_int8: bool) -> None:
    layer = replace(plain_layer(torch.float32, 8), kind=kind)
    backend = TritonAttention()
    needs = needs_of([layer], CPU, has_int8_cache=is_int8)
    backend.prepare(needs)
    assert not load_check.objection(backend, needs)


SIGNATURE = {
    **dict.fromkeys(("table", "firsts", "stops"), "*i64"),
    **dict.fromkeys(("sums", "tops", "totals", "key_scales", "value_scales"), "*fp32"),
    **dict.fromkeys(("scale", "softcap"), "fp32"),
    **dict.fromkeys(("table_width", "num_parts"), "i32"),
}
SHAPES = {
    "num_kv_heads": 8,
    "num_heads": 32,
    "group": 4,
    "group_tile": 16,
    "head_size": 128,
    "head_tile": 128,
    "value_size": 128,
    "value_tile": 128,
    "block_tokens": 16,
    "part_tokens": triton_decode.PART_TOKENS,
    "tile_tokens": triton_decode.TILE_TOKENS,
    "is_interpreted": False,
}


def compiled_for(kernel: Any, architecture: int, dtype: str, **flags: bool) -> dict[str, object]:
    """Return what the compiler makes of a kernel for a GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    stored = "i8" if flags.get("is_int8") else dtype
    types = SIGNATURE | {"keys": f"*{stored}", "values": f"*{stored}"}
    types |= dict.fromkeys(("query", "sinks", "out"), f"*{dtype}")
    constants = {
        name: value for name, value in (SHAPES | flags).items() if name in kernel.arg_names
    }
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    target, options = GPUTarget("cuda", architecture, 32), {"enable_fp_fusion": True}
    made: dict[str, object] = triton.compile(source, target=target, options=options).asm
    return made


@compiled
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_the_kernels_compile_for_gpus(architecture: int, dtype: str, is_int8: bool) -> None:
    flags = {"has_softcap": is_int8, "is_int8": is_int8}
    made = compiled_for(triton_decode._attend_part, architecture, dtype, **flags)
    assert made["cubin"]
    if dtype != "fp32":
        assert "mma" in str(made["ptx"])  # tensor cores
    assert compiled_for(triton_decode._merge_parts, architecture, dtype, has_sinks=is_int8)["cubin"]
