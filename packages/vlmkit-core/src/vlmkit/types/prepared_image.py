"""What a tokenizer made of one image, to be used again for other prompts that show it.

It has no pixels. The engine's inputs are among it, because features may have left their cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmkit.types.transform import Transform


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """The contribution of an image to any prompt that shows it with the same options.

    Attributes:
        size: width and height of the upright image, in pixels.
        token_ids: its tokens, which are those of its slot.
        around: ordinary text before and after these tokens; the tokenizer encodes it together with
            the text of the prompt.
        digest, inputs, num_features, transform, num_encoded: those of its
            :class:`vlmkit.interfaces.prompt.MediaSlot`.
    """

    size: tuple[int, int]
    token_ids: tuple[int, ...]
    around: tuple[str, str]
    digest: bytes
    inputs: Mapping[str, Any]
    num_features: int
    transform: Transform | None
    num_encoded: int
