"""Adapters for families whose decoder merges image features by itself.

In other families, a base model has a tower and merges its rows into the embeddings that its decoder
receives. For a decoder that does all of this, an adapter exposes the tower and the merging alone.
All computation is the family's own code.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from vlmkit_torch.model.features import FeatureOutput


def base_of(model: PreTrainedModel) -> Any:
    """Return the module that merges images into a text and calls a model's decoder."""
    kind = _BASES.get(model.config.model_type)
    return kind(model.base_model) if kind else model.base_model


class Phi4Base(nn.Module):
    """Tower and merging of Phi 4 multimodal, in front of its decoder.

    Args:
        decoder: the family's base model.
    """

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder
        self.config = decoder.config
        # Patches must see later patches, too. transformers allows this only if an image, or another
        # one in its batch, is padded; the features of an image would depend on both.
        for module in decoder.embed_tokens_extend.image_embed.modules():
            if getattr(module, "is_causal", False):
                module.is_causal = False

    def get_image_features(
        self,
        image_pixel_values: torch.Tensor,
        image_sizes: torch.Tensor,
        image_attention_mask: torch.Tensor,
        **_: Any,
    ) -> FeatureOutput:
        """Return the rows that the decoder would merge into a text."""
        table = self.decoder.get_input_embeddings().weight
        no_indices = torch.zeros(0, dtype=torch.int64, device=table.device)
        rows = self.decoder.embed_tokens_extend.image_embed(
            no_indices,
            _EmbeddingStub(table),
            image_pixel_values=image_pixel_values,
            image_sizes=image_sizes,
            image_attention_mask=image_attention_mask,
        )
        return FeatureOutput(pooler_output=rows)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        mm_encoder_outputs: Mapping[str, FeatureOutput] | None = None,
        use_cache: bool | None = None,
    ) -> Any:
        """Merge rows at the image tokens, and call the decoder."""
        embeds = self.decoder.get_input_embeddings()(input_ids)
        if mm_encoder_outputs:
            is_image = input_ids == self.config.vision_config.image_token_id
            rows: Any = mm_encoder_outputs["image"].last_hidden_state
            if int(is_image.sum()) != len(rows):
                raise ValueError("there are not as many rows as tokens of images")
            embeds = embeds.masked_scatter(is_image[..., None], rows)
        return self.decoder(inputs_embeds=embeds, position_ids=position_ids, use_cache=use_cache)


class _EmbeddingStub:
    """Replaces a text's embeddings, and returns the rows that are written into them."""

    def __init__(self, table: torch.Tensor) -> None:
        self.device, self.dtype = table.device, table.dtype

    def index_put(self, *, values: torch.Tensor, **_: Any) -> torch.Tensor:
        return values


_BASES: Mapping[str, type[Any]] = {"phi4_multimodal": Phi4Base}
