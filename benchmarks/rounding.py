"""Rounds weights as the block formats of llama.cpp do.

    PYTHON benchmarks/rounding.py

compares the results with the ``gguf`` package bit for bit, in an environment that has it. A block
is 32 weights of a row with one scale in half precision. ``q8_0`` has codes from -127 to 127, one of
which is the largest weight; ``q4_0`` has codes from -8 to 7, and the largest weight is -8.
"""

from typing import Any

import numpy as np

BLOCK = 32
KINDS = ("q8_0", "q4_0")


def rounded(kind: str, weights: Any) -> Any:
    """Return weights ``[..., columns]`` in float32, rounded by a format; blocks must be whole."""
    blocks = np.asarray(weights, np.float32).reshape(-1, BLOCK)
    codes, scales = {"q8_0": _q8_0, "q4_0": _q4_0}[kind](blocks)
    kept = codes.astype(np.float32) * scales.astype(np.float16).astype(np.float32)
    return kept.reshape(np.shape(weights))


def _q8_0(blocks: Any) -> tuple[Any, Any]:
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    exact = blocks * _inverse(scales)
    whole = np.floor(np.abs(exact))
    halves_up = whole + np.floor(2 * (np.abs(exact) - whole))
    return np.sign(exact) * halves_up, scales


def _q4_0(blocks: Any) -> tuple[Any, Any]:
    largest = np.abs(blocks).argmax(axis=1)[:, None]
    scales = np.take_along_axis(blocks, largest, axis=1) / np.float32(-8)
    exact = blocks * _inverse(scales)
    return np.minimum(np.trunc(exact + np.float32(8.5)), 15) - 8, scales


def _inverse(scales: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.where(scales == 0, np.float32(0), np.float32(1) / scales)


def main() -> None:
    """Compare with the package on random weights and a block of zeros."""
    import gguf

    weights = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    weights[7, :64] = 0
    for kind in KINDS:
        type_ = gguf.GGMLQuantizationType[kind.upper()]
        theirs = gguf.quants.dequantize(gguf.quants.quantize(weights, type_), type_)
        ours = rounded(kind, weights)
        off = np.sqrt(((ours - weights) ** 2).mean() / (weights**2).mean())
        print(f"{kind}: equal {np.array_equal(ours, theirs)}, {100 * off:.2f} % off")


if __name__ == "__main__":
    main()
