"""Finds the properties of a decoder that the exporter needs, by running two tokens through it.

Refuses decoders that cannot be exported before anything costly starts. Contains no names of
families.
"""

from dataclasses import dataclass
from typing import Any

import torch

from vlmkit.errors import CheckpointError, VlmkitError
from vlmkit_onnx.export import deepstack
from vlmkit_onnx.export.attention import LayerShape, ShapeProbe
from vlmkit_onnx.export.refusal import OTHERWISE
from vlmkit_onnx.export.views import Parts, replaced_attention
from vlmkit_onnx.prompts.families import Visibility
from vlmkit_torch.engine.capacity import layer_kinds
from vlmkit_torch.model.positions import tokens_before_change


@dataclass(frozen=True, slots=True)
class DecoderTraits:
    """The properties of a decoder.

    Attributes:
        layers: every layer's attention.
        hidden_size: width of an embedding.
        num_position_axes: 1, or 3 for time, height and width.
        num_deepstack: levels of image rows that are added inside.
        deepstack_layers: the layers before which they are added, if the family numbers them.
        visibility: which tokens of a prompt see each other.
        max_sequence_tokens: longest sequence for which the graph is correct.
    """

    layers: tuple[LayerShape, ...]
    hidden_size: int
    num_position_axes: int
    num_deepstack: int
    visibility: Visibility
    max_sequence_tokens: int
    deepstack_layers: tuple[int, ...] = ()

    @property
    def takes_bias(self) -> bool:
        """Whether the runtime passes the attention masks; the graph builds causal ones only."""
        return self.visibility != "causal"

    @property
    def window(self) -> int | None:
        """Tokens that layers with a window see; None if no layer has a window."""
        return next((layer.window for layer in self.layers if layer.window), None)


def inspect_decoder(parts: Parts, visibility: Visibility) -> DecoderTraits:
    """Return a decoder's properties; the caller states the visibility of its prompts.

    Raises:
        CheckpointError: the decoder cannot be exported.
    """
    config = parts.text_config
    if parts.is_stateful:
        raise CheckpointError(
            f"model type {config.model_type!r} keeps a recurrent state; recurrent layers cannot be "
            "exported",
            hint=OTHERWISE,
        )
    axes = 3 if _rotates_by_sections(parts) else 1
    return DecoderTraits(
        layers=_probed(parts, axes),
        hidden_size=int(config.hidden_size),
        num_position_axes=axes,
        num_deepstack=deepstack.num_levels(parts.config),
        visibility=visibility,
        max_sequence_tokens=max_tokens(config),
        deepstack_layers=deepstack.numbered_layers(parts.config),
    )


def _probed(parts: Parts, axes: int) -> tuple[LayerShape, ...]:
    config = parts.text_config
    probe = ShapeProbe([kind.window or None for kind in layer_kinds(config)])
    embeddings = torch.zeros(1, 2, config.hidden_size, dtype=parts.dtype)
    positions = torch.arange(2).expand(*([3] if axes == 3 else []), 1, 2)
    try:
        with torch.no_grad(), replaced_attention(parts.decoder, probe):
            parts.decoder(inputs_embeds=embeddings, position_ids=positions, use_cache=False)
            parts.logits(embeddings[0])
    except VlmkitError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"the decoder of model type {config.model_type!r} does not take what an exported "
            "decoder gets",
            hint=OTHERWISE,
        ) from error
    absent = [index for index in range(config.num_hidden_layers) if index not in probe.layers]
    if absent:
        raise CheckpointError(
            f"layer {absent[0]} of model type {config.model_type!r} has no attention; recurrent "
            "layers cannot be exported",
            hint=OTHERWISE,
        )
    return tuple(probe.layers[index] for index in range(config.num_hidden_layers))


def max_tokens(config: Any) -> int:
    """Return the longest sequence that has the rotary frequencies of short ones."""
    return tokens_before_change(config) or int(config.max_position_embeddings)


def _rotates_by_sections(parts: Parts) -> bool:
    """Return whether a token's time, height and width are rotated separately.

    Some families have default sections that their configuration does not state.
    """
    stated = getattr(parts.text_config, "rope_parameters", None)
    own = (getattr(module, "mrope_section", None) for module in parts.decoder.modules())
    return _has_key(stated, "mrope_section") or any(own)


def _has_key(tree: Any, key: str) -> bool:
    if not isinstance(tree, dict):
        return False
    return key in tree or any(_has_key(branch, key) for branch in tree.values())
