"""The tokens with which an export is checked, and their logits by the family's own code.

The tokens cover every feature of the family: deepstack rows, positions on three different axes, and
a block of tokens that see each other both ways.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_onnx.export import deepstack
from vlmkit_onnx.export.decoder_traits import DecoderTraits
from vlmkit_onnx.export.embedding import embed, sample_ids, table_of
from vlmkit_onnx.export.frequencies import short_text_frequencies
from vlmkit_onnx.export.views import Parts, replaced_attention
from vlmkit_onnx.prompts.families import Family
from vlmkit_onnx.prompts.prompt_inputs import read_prompt, visible_pairs

NUM_TOKENS = 35
NUM_PROMPT = 9  # the first of them, never split
IMAGE = slice(2, 8)  # placeholder tokens of an image
SEED = 7

Visible: TypeAlias = tuple[NDArray[np.bool_], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence.

    Attributes:
        embeddings: ``[seq, hidden]``.
        positions: ``[axes, seq]``.
        deepstack: ``[levels, seq, hidden]``, zeros outside the image; None if there are no levels.
        visible: ``[seq, seq]`` which tokens each token sees, in layers without a window and in
            layers with one; None if the graph builds the masks.
        logits: ``[seq, vocab]`` by the family's own code.
        states: ``[seq, hidden]`` from which the logits are computed.
    """

    embeddings: NDArray[np.float32]
    positions: NDArray[np.int64]
    deepstack: NDArray[np.float32] | None
    visible: Visible | None
    logits: NDArray[np.float32]
    states: NDArray[np.float32]


def embeddings_of(parts: Parts) -> torch.Tensor:
    """Return the sample's embeddings; must be called before the token table is released."""
    return embed(parts, sample_ids(len(table_of(parts)), NUM_TOKENS))


def make_sample(parts: Parts, traits: DecoderTraits, embeddings: torch.Tensor) -> Sample:
    """Compute the sample's logits by the family's own code, as one sequence without a cache.

    Args:
        parts: the modules to export, already quantized.
        traits: of the decoder.
        embeddings: from :func:`embeddings_of`.
    """
    seq = len(embeddings)
    steps = torch.arange(seq)
    positions = torch.stack(
        [steps, steps + steps % 3, steps + steps % 5][: traits.num_position_axes]
    )
    levels = _deepstack(traits, embeddings)
    visible = _visible(traits, seq) if traits.takes_bias else None
    dtype = parts.dtype
    arguments: dict[str, Any] = {}
    if levels is not None:
        is_image = torch.zeros(1, seq, dtype=torch.bool)
        is_image[:, IMAGE] = True
        rows = levels[:, IMAGE].to(dtype)
        arguments |= deepstack.by_mask(traits.deepstack_layers, rows, is_image)
    if visible is not None:
        arguments["attention_mask"] = _additive_mask(traits, visible, dtype)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(replaced_attention(parts.decoder, "eager"))
        if positions.max() >= traits.max_sequence_tokens:  # the graph supports no longer texts
            stack.enter_context(short_text_frequencies(parts.decoder))
        hidden = parts.decoder(
            inputs_embeds=embeddings[None].to(dtype, copy=True),  # CTRL scales them in place
            position_ids=positions[:, None] if len(positions) == 3 else positions,
            use_cache=False,
            **arguments,
        ).last_hidden_state
        logits = parts.logits(hidden[0]).float()
    return Sample(
        embeddings=embeddings.numpy(),
        positions=positions.numpy(),
        deepstack=None if levels is None else levels.numpy(),
        visible=visible,
        logits=logits.numpy(),
        states=hidden[0].float().numpy(),
    )


def _deepstack(traits: DecoderTraits, embeddings: torch.Tensor) -> torch.Tensor | None:
    if not traits.num_deepstack:
        return None
    rows = torch.zeros(traits.num_deepstack, *embeddings.shape)
    random = torch.Generator().manual_seed(SEED)
    shape = rows[:, IMAGE].shape
    rows[:, IMAGE] = torch.randn(shape, generator=random) * embeddings.std()
    return rows


def _visible(traits: DecoderTraits, seq: int) -> Visible:
    """Return the masks that the engine computes for a prompt with an image and its answer."""
    is_image = np.zeros(NUM_PROMPT, np.int64)
    is_image[IMAGE] = 1
    slot = MediaSlot(IMAGE.start, IMAGE.stop, b"", {}, IMAGE.stop - IMAGE.start)
    prompt = Prompt(tuple(is_image.tolist()), (slot,))
    return visible_pairs(read_prompt(prompt, Family(1, traits.visibility)), 0, seq, traits.window)


def _additive_mask(traits: DecoderTraits, visible: Visible, dtype: torch.dtype) -> Any:
    """Return masks in the form that a decoder expects: one for each kind of layer, or only one."""
    lowest = torch.finfo(dtype).min
    full, windowed = (
        torch.where(torch.from_numpy(v), 0.0, lowest).to(dtype)[None, None] for v in visible
    )
    return {"full_attention": full, "sliding_attention": windowed} if traits.window else full
