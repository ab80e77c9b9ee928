"""Rounds vectors to integers of 8 bits, each vector with a scale of its own.

A vector is rounded alone, so its integers depend on no other token, head or layer. The largest
magnitude of a vector becomes 127. Stores nothing; ``kv_cache`` does.
"""

import torch

LARGEST = 127  # minus 128 is not used, so that signs are alike
SCALE_DTYPE = torch.float32  # of half precision, the largest magnitudes would not fit into 127
SMALLEST_SCALE = torch.finfo(SCALE_DTYPE).tiny  # a vector of zeros has a scale, too


def quantized(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers and scales of vectors.

    A vector with a value that is not finite has a scale that is not finite, and is read as such.

    Args:
        vectors: ``[..., size]`` of any floating-point dtype.

    Returns:
        int8 ``[..., size]``, and float32 ``[...]``.
    """
    exact = vectors.to(SCALE_DTYPE)
    scales = (exact.abs().amax(-1) / LARGEST).clamp_min(SMALLEST_SCALE)
    return (exact / scales[..., None]).round_().to(torch.int8), scales


def dequantized(integers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``[..., size]`` of a dtype: each integer times the scale of its vector, rounded once.

    Args:
        integers: int8 ``[..., size]``.
        scales: float32 ``[...]``.
        dtype: of the result.
    """
    return integers.to(SCALE_DTYPE).mul_(scales[..., None]).to(dtype)
