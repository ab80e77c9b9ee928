"""A transformers model cut into its decoder and its head.

This is the only module of the exporter that knows how transformers nests its modules. Parts are
the model's own modules or shallow copies with one child replaced: no weight is copied.
"""

# ruff: noqa: SLF001 - views are made of the insides of modules; every such access is in this file

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from vlmkit.errors import CheckpointError

NAME = "vlmkit_export"


class Parts:
    """What of a model becomes the decoder's graph; lets go of towers and projectors.

    Attributes:
        decoder: embeddings -> hidden states.
        head: the whole model, with its decoder replaced by a passage.
        config: of the whole model.
        text_config: of the decoder.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.decoder: Any = _decoder_of(model)
        base: Any = model.base_model
        inner = self.decoder if base is model else base
        self.head: Any = _with_child(model, _path_of(model, inner), Passage(inner.config))
        self.config: PretrainedConfig = model.config
        self.text_config: Any = model.config.get_text_config()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``[rows, vocab]`` of hidden states ``[rows, hidden]``, scaled as due."""
        logits: torch.Tensor = self.head(inputs_embeds=hidden[None]).logits[0]
        return logits

    @property
    def dtype(self) -> torch.dtype:
        """Type of the decoder's weights, those of quantized layers aside."""
        found: torch.dtype = next(
            p.dtype for p in self.decoder.parameters() if p.is_floating_point()
        )
        return found

    @property
    def embedding(self) -> nn.Module:
        """What turns token ids into rows."""
        found: nn.Module = self.decoder.get_input_embeddings()
        return found

    def discard(self) -> None:
        """Free every weight, whoever still holds it; the parts are of no use afterwards."""
        for module in (self.decoder, self.head):
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.data = tensor.new_empty(0)

    def drop_embedding(self) -> None:
        """Let go of the token table; the head may still share its weight."""
        for module in self.decoder.modules():
            for name, child in module._modules.items():
                if child is self.embedding:
                    module._modules[name] = nn.Identity()
                    return


class Passage(nn.Module):
    """Stands where the base model stands and returns its input as the hidden states."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> BaseModelOutputWithPast:
        """Return the embeddings as they are."""
        return _Output(last_hidden_state=inputs_embeds)


class _Output(BaseModelOutputWithPast):
    """An output of which every field that a family may ask for is there, though None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@contextmanager
def attention(decoder: Any, implementation: Any) -> Iterator[None]:
    """Compute the decoder's attention by a function, or by one of transformers' own by name.

    Afterwards everything is as it was: the decoder, and what transformers knows.

    Raises:
        CheckpointError: the family's code does not let its attention be replaced.
    """
    before = decoder.config._attn_implementation
    name = implementation
    if not isinstance(implementation, str):
        name = f"{NAME}_{id(implementation)}"  # not registered for masks: none are built
        AttentionInterface.register(name, implementation)
    try:
        _set_attention(decoder, name)
        yield
    finally:
        # Not by the method above: it refuses what some families were loaded with.
        decoder.config._attn_implementation_internal = before
        if name != implementation:
            del AttentionInterface._global_mapping[name]


def _set_attention(decoder: Any, name: str) -> None:
    config = decoder.config
    parts = {key: getattr(config, key, None) for key in config.sub_configs}
    kept = {key: part._attn_implementation for key, part in parts.items() if part is not None}
    decoder.set_attn_implementation({"": name, **kept})
    if config._attn_implementation != name:
        raise CheckpointError(
            f"model type {config.model_type!r} does not let its attention be replaced, so it "
            "cannot be exported"
        )


def _decoder_of(model: PreTrainedModel) -> Any:
    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    while decoder.get_output_embeddings() is not None:  # a whole causal LM inside a VLM
        decoder = decoder.model
    return decoder


def _path_of(root: nn.Module, target: nn.Module) -> str:
    for name, module in root.named_modules():
        if module is target:
            return str(name)
    raise ValueError("the module is not inside the root")


def _with_child(root: nn.Module, path: str, new: nn.Module) -> Any:
    """Copy the modules along ``path`` shallowly, with the last one replaced."""
    name, _, rest = path.partition(".")
    view = copy.copy(root)
    child = root._modules[name]
    view._modules = dict(root._modules)
    view._modules[name] = _with_child(child, rest, new) if rest and child is not None else new
    return view
