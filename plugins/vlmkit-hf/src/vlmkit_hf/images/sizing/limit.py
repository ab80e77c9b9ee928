"""Kimi, Muse, Nemotron, Llama 4, Molmo 2, LFM2 and their like: one number that bounds a picture.

Whether it counts patches, tiles or tokens is the family's business: how many tokens follow is asked
of its own plan of a picture, and of the words that its processor writes for that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlmkit.errors import RequestError
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import FIELD, Limits, Sizing, number

NAMES = (
    *("max_image_tokens", "max_soft_tokens", "max_num_patches", "max_crops", "max_patches"),
    "max_image_size",
)
"""What families call it; the first that a processor has is it."""

CHOICES: Mapping[str, Sequence[int]] = {"max_soft_tokens": (70, 140, 280, 560, 1120)}
"""The numbers that a family knows, where not all."""

LOWERED = {"max_image_tokens": "min_image_tokens", "max_num_patches": "min_num_patches"}
"""What must not be over it."""

WHOLE = {"max_image_tokens": "do_image_splitting"}
"""What lets a picture over the limit be cut into more, and so is left off under a lower one."""


class Limit(Sizing):
    """One number of an image processor that says what it makes of a picture's size.

    From one number to the next, tokens of some families rise and fall a little: a picture keeps to
    its bound all the same, and may have a few tokens less than would fit.

    Args:
        processor: the family's.
        options: what it and its image processor are called with.
        name: of the number.
        token: of which each has a feature.
    """

    def __init__(self, processor: Any, options: Mapping[str, Any], name: str, token: str) -> None:
        self.names = (name,)
        self._name, self._token = name, token
        self._processor, self._options = processor, options
        own = options.get(name)
        self._most = int(getattr(processor.image_processor, name) if own is None else own)

    def asked(self, given: Mapping[str, Any]) -> Limits:
        """Take the number."""
        asked = number(given, self._name, self._most)
        known = CHOICES.get(self._name)
        if known is not None and asked not in known:
            place = f"{FIELD}.{self._name}"
            raise RequestError(f"{place} must be one of {', '.join(map(str, known))}", param=place)
        return self._under(asked)

    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Count them in what the processor writes."""
        called_with = {**self._options, **limits}
        try:
            arrays = self.outline(size, limits)
        except (ValueError, ZeroDivisionError):  # as transformers has it, for less than a token
            return 0
        written = self._processor.replace_image_token(arrays, image_idx=0, **called_with)
        return int(written.count(self._token))

    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return the numbers of the plan, and what has the shape of a tile."""
        images = self._processor.image_processor
        plan = images.plan(size, {**self._options, **limits})
        lists = images.family.lists if hasattr(images, "family") else ()
        *_, last = plan.views[-1]
        tile = getattr(last, "tile", None) or last.size
        pixels = np.broadcast_to(np.uint8(0), (1, 3, *tile))
        numbers = {k: v if k in lists else np.asarray(v) for k, v in plan.numbers.items()}
        return {"pixel_values": pixels, **numbers}

    def steps(self, limits: Limits) -> Sequence[int]:
        """Return numbers up to the limit."""
        most = limits.get(self._name, self._most)
        known = CHOICES.get(self._name)
        return [step for step in known if step <= most] if known else range(1, most + 1)

    def at(self, step: int, limits: Limits) -> Limits:
        """Lower the number."""
        whole = WHOLE.get(self._name, "")
        cut = {whole: False} if hasattr(self._processor.image_processor, whole) else {}
        return {**limits, **self._under(step), **cut}

    def _under(self, most: int) -> Limits:
        """Return the number, and a lower bound with it that is over it."""
        least = LOWERED.get(self._name, "")
        own = getattr(self._processor.image_processor, least, None) if least else None
        return {self._name: most, **({least: most} if own is not None and own > most else {})}
