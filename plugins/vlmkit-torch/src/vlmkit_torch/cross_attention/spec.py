"""Facts about a family whose decoder attends to images by cross-attention.

Which layers do so, which tokens attend to which image, and how many rows an image has. The rules
are the family's own. Keys and values of images are stored by ``image_cache``.
"""

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import MediaSlot, Prompt

STATES = "cross_attention_states"  # the encoder's rows that the decoder attends to
TILES = "aspect_ratio_mask"  # one for each tile of an image, zero for padding tiles
TO_THE_END = 2**62  # a stop: tokens that attend to the last image are followed by the answer


class AttendingSpan(NamedTuple):
    """The tokens that attend to one image.

    Attributes:
        start: the first token, which is the image's placeholder.
        stop: one past the last token, ``TO_THE_END`` if the answer attends too.
        num_rows: rows of the image's keys and values.
    """

    start: int
    stop: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class CrossAttentionSpec:
    """The cross-attention of one model.

    Attributes:
        layers: indices of the layers that attend to images.
        image_token: the placeholder of an image in a prompt.
        tile_rows: rows of a tile.
        max_tiles: most tiles of an image.
    """

    layers: frozenset[int]
    image_token: int
    tile_rows: int
    max_tiles: int

    @property
    def max_image_rows(self) -> int:
        """Rows of the largest image."""
        return self.tile_rows * self.max_tiles

    def attending_spans(self, prompt: Prompt) -> tuple[AttendingSpan, ...]:
        """Return the tokens that attend to each image of a prompt.

        Tokens attend to an image up to the next one, and to adjacent images together. What a token
        attends to never depends on later tokens.

        Raises:
            EngineError: the prompt's image tokens are not at the starts of its media slots.
        """
        ranges = self.ranges(prompt)
        if [start for start, _ in ranges] != [slot.start for slot in prompt.media]:
            raise EngineError("the prompt's image tokens are not where its images are")
        return tuple(
            AttendingSpan(
                start, TO_THE_END if stop in (-1, len(prompt)) else stop, self.num_rows(slot)
            )
            for (start, stop), slot in zip(ranges, prompt.media, strict=True)
        )

    def num_rows(self, slot: MediaSlot) -> int:
        """Return the rows of an image's tiles, without padding tiles."""
        return self.tile_rows * self.num_tiles(slot)

    def num_tiles(self, slot: MediaSlot) -> int:
        """Return the number of tiles of an image, without padding tiles."""
        tiles = slot.inputs.get(TILES)
        return self.max_tiles if tiles is None else int(np.sum(np.from_dlpack(tiles)))

    def ranges(self, prompt: Prompt) -> list[list[int]]:
        """Return the token range of each image as the family's processor computes it."""
        from transformers.models.mllama.processing_mllama import get_cross_attention_token_mask

        ids = list(prompt.token_ids)
        ranges: list[list[int]] = get_cross_attention_token_mask(ids, self.image_token)
        return ranges


def cross_attention_spec(model: PreTrainedModel) -> CrossAttentionSpec | None:
    """Return a model's cross-attention; None if its decoder attends to its text only."""
    layers = getattr(model.config.get_text_config(), "cross_attention_layers", None)
    vision = getattr(model.config, "vision_config", None)
    if not layers or vision is None:
        return None
    tower: Any = model.base_model.vision_model
    return CrossAttentionSpec(
        layers=frozenset(layers),
        image_token=model.config.image_token_id,
        tile_rows=tower.num_patches,
        max_tiles=vision.max_num_tiles,
    )


def runs(
    spans: Seq[AttendingSpan], start: int, stop: int
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield runs of the tokens ``[start, stop)``, each with the images that it attends to."""
    edges = {edge for span in spans for edge in (span.start, span.stop) if start < edge < stop}
    cuts = [start, *sorted(edges), stop]
    for first, end in pairwise(cuts):
        images = (i for i, span in enumerate(spans) if span.start <= first < span.stop)
        yield first, end, tuple(images)
