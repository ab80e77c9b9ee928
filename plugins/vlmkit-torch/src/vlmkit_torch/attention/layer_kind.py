"""Which tokens a token sees: by the kind of its layer, or by a family's own mask.

Rules alone, on the host. ``key_ranges`` derives the cache slots from them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch


class LayerKind(NamedTuple):
    """The rule by which tokens of a layer see earlier tokens.

    Attributes:
        name: the family's name for it, such as ``sliding_attention``.
        window: tokens that a token sees, itself included; None means all.
        section: size of the sections that the prompt is cut into; tokens see no other section.
    """

    name: str
    window: int | None = None
    section: int | None = None

    def first_visible(self, index: int) -> int:
        """Return the first token that token ``index`` sees."""
        first = 0
        if self.window is not None:
            first = max(first, index - self.window + 1)
        if self.section is not None:
            first = max(first, index // self.section * self.section)
        return first

    def first_visible_each(self, index: np.ndarray) -> np.ndarray:
        """Return the first token that each token of an array sees."""
        first = np.zeros_like(index)
        if self.window is not None:
            first = np.maximum(first, index - self.window + 1)
        if self.section is not None:
            first = np.maximum(first, index // self.section * self.section)
        return first


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which tokens each token of a prompt, or of a part of one, sees.

    Attributes:
        start: ``[seq]`` int64, the first token that each token sees.
        stop: ``[seq]`` int64, one past the last that it sees.
        dense: ``[seq, seq]`` bool on the device, only if some token's range has holes.
    """

    start: np.ndarray
    stop: np.ndarray
    dense: torch.Tensor | None = None

    def cut(self, start: int, stop: int) -> "Visibility":
        """Return what tokens ``[start, stop)`` see of the first ``stop``."""
        dense = None if self.dense is None else self.dense[start:stop, :stop]
        return Visibility(self.start[start:stop], self.stop[start:stop], dense)
