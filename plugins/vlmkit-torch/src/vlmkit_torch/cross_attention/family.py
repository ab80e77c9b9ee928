"""What a family is like whose decoder looks at pictures by cross-attention.

Which of its layers do, which tokens look at which picture, and how many rows a picture has. The
rules are the family's own. Keys and values of pictures are the business of ``pictures``.
"""

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import MediaSlot, Prompt

STATES = "cross_attention_states"  # what an encoder's features are called that are looked at
TILES = "aspect_ratio_mask"  # one for each tile of a picture, zero for those that fill it up
TO_THE_END = 2**62  # a stop: those who look at a picture last are followed by the answer


class Sight(NamedTuple):
    """Who looks at a picture.

    Attributes:
        start: the first token, which stands for the picture.
        stop: one past the last, ``TO_THE_END`` where the answer looks, too.
        num_rows: rows of the picture's keys and values.
    """

    start: int
    stop: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """The facts of one model.

    Attributes:
        layers: which layers look at pictures.
        image_token: stands for a picture in a prompt.
        tile_rows: rows of a tile.
        most_tiles: of a picture.
    """

    layers: frozenset[int]
    image_token: int
    tile_rows: int
    most_tiles: int

    @property
    def most_rows(self) -> int:
        """Rows of the largest picture."""
        return self.tile_rows * self.most_tiles

    def sights(self, prompt: Prompt) -> tuple[Sight, ...]:
        """Return who looks at each picture of a prompt.

        A picture is looked at up to the next one; pictures that stand side by side are looked at
        together. So a token's sight depends on nothing that comes after it.

        Raises:
            EngineError: the prompt's image tokens are not where its pictures are.
        """
        ranges = self.ranges(prompt)
        if [start for start, _ in ranges] != [slot.start for slot in prompt.media]:
            raise EngineError("the prompt's image tokens are not where its pictures are")
        return tuple(
            Sight(start, TO_THE_END if stop in (-1, len(prompt)) else stop, self.num_rows(slot))
            for (start, stop), slot in zip(ranges, prompt.media, strict=True)
        )

    def num_rows(self, slot: MediaSlot) -> int:
        """Return how many rows a picture has: those of its tiles, and none of what fills it up."""
        return self.tile_rows * self.num_tiles(slot)

    def num_tiles(self, slot: MediaSlot) -> int:
        """Return how many tiles a picture has."""
        tiles = slot.inputs.get(TILES)
        return self.most_tiles if tiles is None else int(np.sum(np.from_dlpack(tiles)))

    def ranges(self, prompt: Prompt) -> list[list[int]]:
        """Return what the family's processor says of who looks at each picture."""
        from transformers.models.mllama.processing_mllama import get_cross_attention_token_mask

        ids = list(prompt.token_ids)
        ranges: list[list[int]] = get_cross_attention_token_mask(ids, self.image_token)
        return ranges


def crossing_of(model: PreTrainedModel) -> Crossing | None:
    """Return a model's facts; None where its decoder looks at nothing but its text."""
    layers = getattr(model.config.get_text_config(), "cross_attention_layers", None)
    vision = getattr(model.config, "vision_config", None)
    if not layers or vision is None:
        return None
    tower: Any = model.base_model.vision_model
    return Crossing(
        layers=frozenset(layers),
        image_token=model.config.image_token_id,
        tile_rows=tower.num_patches,
        most_tiles=vision.max_num_tiles,
    )


def runs(sights: Seq[Sight], start: int, stop: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield runs of the tokens ``[start, stop)``, and the pictures that those of each look at."""
    edges = {edge for sight in sights for edge in (sight.start, sight.stop) if start < edge < stop}
    cuts = [start, *sorted(edges), stop]
    for first, end in pairwise(cuts):
        seen = (i for i, sight in enumerate(sights) if sight.start <= first < sight.stop)
        yield first, end, tuple(seen)
