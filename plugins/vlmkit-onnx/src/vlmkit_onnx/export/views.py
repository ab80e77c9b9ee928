"""Splits a transformers model into its decoder and its head.

The parts are the model's own modules, or shallow copies with one child replaced. No weight is
copied.
"""

# ruff: noqa: SLF001 - parts access private attributes of modules, in this file only

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from vlmkit_torch.model.nesting import decoder_of, head_of, replace_attention

NAME = "vlmkit_export"


class Parts:
    """The parts of a model that become the decoder's graph, without towers and projectors.

    Attributes:
        decoder: embeddings -> hidden states.
        head: the whole model, with its decoder replaced by the identity.
        config: of the whole model.
        text_config: of the decoder.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.decoder: Any = decoder_of(model)
        self.head: Any = head_of(model, self.decoder)
        self.config: PretrainedConfig = model.config
        self.text_config: Any = model.config.get_text_config()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return scaled and capped logits ``[rows, vocab]`` of hidden states ``[rows, hidden]``."""
        logits: torch.Tensor = self.head(inputs_embeds=hidden[None]).logits[0]
        return logits

    @property
    def is_stateful(self) -> bool:
        """Whether the decoder stores more than keys and values."""
        return bool(self.decoder._is_stateful)  # transformers' only word for it

    @property
    def dtype(self) -> torch.dtype:
        """Type of the decoder's weights, except in quantized layers."""
        found: torch.dtype = next(
            p.dtype for p in self.decoder.parameters() if p.is_floating_point()
        )
        return found

    @property
    def embedding(self) -> nn.Module:
        """The module that turns token ids into rows."""
        found: nn.Module = self.decoder.get_input_embeddings()
        return found

    def discard(self) -> None:
        """Free every weight, even if it is still referenced; the parts are unusable afterwards."""
        for module in (self.decoder, self.head):
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.data = tensor.new_empty(0)

    def drop_embedding(self) -> None:
        """Release the token table; the head may still share its weight."""
        for module in self.decoder.modules():
            for name, child in module._modules.items():
                if child is self.embedding:
                    module._modules[name] = nn.Identity()
                    return


@contextmanager
def replaced_attention(decoder: Any, implementation: Any) -> Iterator[None]:
    """Replace the decoder's attention while the block runs.

    Restores the decoder and transformers' registry afterwards.

    Args:
        decoder: whose attention to replace.
        implementation: an attention function, or the name of one of transformers.

    Raises:
        CheckpointError: the family's code does not allow another attention.
    """
    before = decoder.config._attn_implementation
    name = implementation
    if not isinstance(implementation, str):
        name = f"{NAME}_{id(implementation)}"  # not registered for masks: none are built
        AttentionInterface.register(name, implementation)
    try:
        replace_attention(decoder, name)
        yield
    finally:
        # Not by replace_attention: it refuses the implementation that some families load with.
        decoder.config._attn_implementation_internal = before
        if name != implementation:
            del AttentionInterface._global_mapping[name]
