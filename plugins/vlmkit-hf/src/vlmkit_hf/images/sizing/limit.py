"""A single upper limit: Kimi, Muse, Nemotron, Llama 4, Molmo 2, LFM2 and similar families.

The limit counts patches, tiles or tokens, depending on the family. The family's plan of an image
and the text of its processor determine the resulting number of tokens.
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
"""Names of the limit; a processor's first one counts."""

CHOICES: Mapping[str, Sequence[int]] = {"max_soft_tokens": (70, 140, 280, 560, 1120)}
"""The values that a family accepts, if not all."""

LOWERED = {"max_image_tokens": "min_image_tokens", "max_num_patches": "min_num_patches"}
"""The lower limit that must not exceed it."""

WHOLE = {"max_image_tokens": "do_image_splitting"}
"""The setting that cuts larger images into tiles, and that is off under a lower limit."""


class Limit(Sizing):
    """The upper limit of an image processor that has a plan for each size.

    In some families the number of tokens is not quite monotonic in the limit. An image then keeps
    to its bound, but may have a few tokens less than would fit.

    Args:
        processor: the family's processor.
        options: the arguments of the processor and its image processor.
        name: the name of the limit.
        token: the text of the feature token.
    """

    def __init__(self, processor: Any, options: Mapping[str, Any], name: str, token: str) -> None:
        self.names = (name,)
        self._name, self._token = name, token
        self._processor, self._options = processor, options
        own = options.get(name)
        self._most = int(getattr(processor.image_processor, name) if own is None else own)

    def from_client(self, given: Mapping[str, Any]) -> Limits:
        """Accept the limit."""
        from_client = number(given, self._name, self._most)
        known = CHOICES.get(self._name)
        if known is not None and from_client not in known:
            param = f"{FIELD}.{self._name}"
            raise RequestError(f"{param} must be one of {', '.join(map(str, known))}", param=param)
        return self._under(from_client)

    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Count the feature tokens in the processor's text."""
        called_with = {**self._options, **limits}
        try:
            arrays = self.outline(size, limits)
        except (ValueError, ZeroDivisionError):  # transformers raises them for less than a token
            return 0
        written = self._processor.replace_image_token(arrays, image_idx=0, **called_with)
        return int(written.count(self._token))

    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return the numbers of the plan, and an array with the shape of a tile."""
        images = self._processor.image_processor
        plan = images.plan(size, {**self._options, **limits})
        lists = images.family.lists if hasattr(images, "family") else ()
        *_, last = plan.views[-1]
        tile = getattr(last, "tile", None) or last.size
        pixels = np.broadcast_to(np.uint8(0), (1, 3, *tile))
        numbers = {k: v if k in lists else np.asarray(v) for k, v in plan.numbers.items()}
        return {"pixel_values": pixels, **numbers}

    def steps(self, limits: Limits) -> Sequence[int]:
        """Return values up to the limit."""
        most = limits.get(self._name, self._most)
        known = CHOICES.get(self._name)
        return [step for step in known if step <= most] if known else range(1, most + 1)

    def at(self, step: int, limits: Limits) -> Limits:
        """Lower the limit."""
        whole = WHOLE.get(self._name, "")
        cut = {whole: False} if hasattr(self._processor.image_processor, whole) else {}
        return {**limits, **self._under(step), **cut}

    def _under(self, most: int) -> Limits:
        """Return the limit, and the family's lower limit reduced to it if necessary."""
        least = LOWERED.get(self._name, "")
        own = getattr(self._processor.image_processor, least, None) if least else None
        return {self._name: most, **({least: most} if own is not None and own > most else {})}
