"""The tokens that an export is checked with, and what the family's own code makes of them.

They have everything that the family can meet: image rows that are added inside, positions on
three axes that differ, a block of tokens that see each other both ways.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_onnx.export import deepstack
from vlmkit_onnx.export.decoder_traits import Anatomy
from vlmkit_onnx.export.embedding import embed, sample_ids, table_of
from vlmkit_onnx.export.frequencies import first_frequencies
from vlmkit_onnx.export.views import Parts, attention
from vlmkit_onnx.prompts.families import Family
from vlmkit_onnx.prompts.prompt_inputs import read_prompt, sees

NUM_TOKENS = 35
NUM_PROMPT = 9  # of them, never cut
IMAGE = slice(2, 8)  # tokens that stand for an image
SEED = 7

Visible: TypeAlias = tuple[NDArray[np.bool_], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence.

    Attributes:
        embeddings: ``[seq, hidden]``.
        positions: ``[axes, seq]``.
        deepstack: ``[levels, seq, hidden]``, zeros outside the image; None where there are none.
        visible: ``[seq, seq]`` which tokens each sees in layers that see all, and in those with a
            window; None where that is not for the host to say.
        logits: ``[seq, vocab]`` by the family's own code.
        states: ``[seq, hidden]`` what the logits are made of.
    """

    embeddings: NDArray[np.float32]
    positions: NDArray[np.int64]
    deepstack: NDArray[np.float32] | None
    visible: Visible | None
    logits: NDArray[np.float32]
    states: NDArray[np.float32]


def embeddings_of(parts: Parts) -> torch.Tensor:
    """Return the sample's embeddings; to be asked before the token table is let go."""
    return embed(parts, sample_ids(len(table_of(parts)), NUM_TOKENS))


def make_sample(parts: Parts, anatomy: Anatomy, embeddings: torch.Tensor) -> Sample:
    """Compute the sample's logits plainly, as one sequence without a cache.

    Args:
        parts: the modules that are exported, quantized if they are to be.
        anatomy: what the decoder takes.
        embeddings: from :func:`embeddings_of`.
    """
    seq = len(embeddings)
    steps = torch.arange(seq)
    positions = torch.stack(
        [steps, steps + steps % 3, steps + steps % 5][: anatomy.num_position_axes]
    )
    levels = _deepstack(anatomy, embeddings)
    visible = _visible(anatomy, seq) if anatomy.takes_bias else None
    dtype = parts.dtype
    arguments: dict[str, Any] = {}
    if levels is not None:
        is_image = torch.zeros(1, seq, dtype=torch.bool)
        is_image[:, IMAGE] = True
        rows = levels[:, IMAGE].to(dtype)
        arguments |= deepstack.by_mask(anatomy.deepstack_layers, rows, is_image)
    if visible is not None:
        arguments["attention_mask"] = _masks(anatomy, visible, dtype)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(attention(parts.decoder, "eager"))
        if positions.max() >= anatomy.max_sequence_tokens:  # a graph is none of longer texts
            stack.enter_context(first_frequencies(parts.decoder))
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


def _deepstack(anatomy: Anatomy, embeddings: torch.Tensor) -> torch.Tensor | None:
    if not anatomy.num_deepstack:
        return None
    rows = torch.zeros(anatomy.num_deepstack, *embeddings.shape)
    random = torch.Generator().manual_seed(SEED)
    shape = rows[:, IMAGE].shape
    rows[:, IMAGE] = torch.randn(shape, generator=random) * embeddings.std()
    return rows


def _visible(anatomy: Anatomy, seq: int) -> Visible:
    """Return what the engine would say of a prompt with an image and of what follows it."""
    marks = np.zeros(NUM_PROMPT, np.int64)
    marks[IMAGE] = 1
    slot = MediaSlot(IMAGE.start, IMAGE.stop, b"", {}, IMAGE.stop - IMAGE.start)
    prompt = Prompt(tuple(marks.tolist()), (slot,))
    return sees(read_prompt(prompt, Family(1, anatomy.visibility)), 0, seq, anatomy.window)


def _masks(anatomy: Anatomy, visible: Visible, dtype: torch.dtype) -> Any:
    """Return masks as a decoder takes them: one for each kind of layer, or one alone."""
    lowest = torch.finfo(dtype).min
    full, near = (
        torch.where(torch.from_numpy(v), 0.0, lowest).to(dtype)[None, None] for v in visible
    )
    return {"full_attention": full, "sliding_attention": near} if anatomy.window else full
