"""Compares an attention backend with ``sdpa``, on the device and with the layers of a model.

A kernel may be wrong on one device, for one size of heads or for one mask, which no test may have
tried. So a backend computes a small step of random numbers for each form of layer before it is
used. Reads no weights.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from vlmkit_torch.attention.layer_kind import Visibility
from vlmkit_torch.attention.sample_step import Part, SampleStep
from vlmkit_torch.attention.sdpa import SdpaAttention
from vlmkit_torch.interfaces.torch_attention import AttentionBackend, AttentionNeeds, LayerNeeds

DECODES = (1, 15, 70, 300, 600)
"""Earlier tokens of sequences that get one more: within a block, and beyond what kernels read at
once."""
CHUNKS = ((0, 12), (37, 20))
"""Earlier and new tokens of chunks."""
SPAN = 3, 8  # tokens of the first chunk that see each other, where prompts may have such
MAX_WINDOW_EDGE = 8192  # of a window whose border is tried, too
TINY = 1e-30  # the length of a row of zeros
MAX_ERRORS = {torch.float64: 1e-9, torch.float32: 2e-5}
HALF_ERROR = 2**-6
"""The largest error of a row beside its length. Half precision rounds scores and weights."""


def objection(backend: AttentionBackend, needs: AttentionNeeds) -> str:
    """Return why a prepared backend must not be used; empty if it agrees with ``sdpa``.

    Lets errors of the backend pass.
    """
    reference = SdpaAttention()
    reference.prepare(needs)
    for layer in dict.fromkeys(replace(layer, index=0) for layer in needs.layers):
        pairs = [(_sampled(layer, needs), _sampled(layer, needs))]
        if backend.capabilities.fixed_shapes:
            pairs.append((_decoded(layer, needs, is_padded=True), _decoded(layer, needs)))
        errors = [excess_error(own.run(backend), other.run(reference)) for own, other in pairs]
        if error := max(filter(None, errors), default=0):
            return (
                f"its values differ from those of 'sdpa' on device {str(needs.device)!r} by "
                f"{error:.1g} of their length, in layers of the kind {layer.kind.name!r}"
            )
    return ""


def excess_error(found: torch.Tensor, expected: torch.Tensor) -> float | None:
    """Return the largest error of a row beside its length; None if rounding explains it.

    Waits for the device.

    Args:
        found: ``[..., width]``.
        expected: likewise; values that are not finite must be at the same places.
    """
    is_finite = expected.isfinite()
    if not torch.equal(found.isfinite(), is_finite):
        return math.inf
    rows, wanted = (each.where(is_finite, 0).double() for each in (found, expected))
    errors = (rows - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(TINY)
    error = float(errors.max())
    return error if error > MAX_ERRORS.get(expected.dtype, HALF_ERROR) else None


def _decodes(layer: LayerNeeds) -> list[Part]:
    """Return decodes of several lengths, also beside the edge of a window or a section."""
    edge = layer.kind.window or layer.kind.section or 0
    edges = (edge - 1, edge) if 1 < edge <= MAX_WINDOW_EDGE else ()
    return [Part(first, 1) for first in (*DECODES, *edges)]


def _decoded(layer: LayerNeeds, needs: AttentionNeeds, *, is_padded: bool = False) -> SampleStep:
    """Return a step of decodes alone; a padded table of blocks is wider than they need."""
    decodes = _decodes(layer)
    step = SampleStep(
        *(layer, decodes, needs.device),
        num_decodes=len(decodes),
        has_int8_cache=needs.has_int8_cache,
        block_tokens=needs.block_tokens,
    )
    if is_padded:
        step.widen(step.tokens.block_table.shape[1] + 1)
    return step


def _sampled(layer: LayerNeeds, needs: AttentionNeeds) -> SampleStep:
    """Return a step with decodes, and with chunks whose tokens may see each other."""
    decodes = _decodes(layer)
    (start, later) = (Part(*chunk) for chunk in CHUNKS)
    if needs.has_image_spans:
        start = replace(start, views={"full_attention": _span(start.count)})
    return SampleStep(
        layer,
        [*decodes, start, later],
        needs.device,
        num_decodes=len(decodes),
        has_int8_cache=needs.has_int8_cache,
        block_tokens=needs.block_tokens,
    )


def _span(num_tokens: int) -> Visibility:
    """Return causal visibility, but for the tokens of a span, which see each other."""
    index = np.arange(num_tokens)
    is_inside = (index >= SPAN[0]) & (index < SPAN[1])
    stop = np.where(is_inside, SPAN[1], index + 1)
    return Visibility(np.zeros(num_tokens, dtype=np.int64), stop)
