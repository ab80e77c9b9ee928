"""The features of a medium: an encoder's output, which an engine inserts for its tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vlmkit.interfaces.prompt import Array


@dataclass(frozen=True, slots=True)
class MediaFeatures:
    """The encoder's output for one medium.

    Attributes:
        num_tokens: rows of ``embeddings``; equals the slot's ``num_features``.
        embeddings: ``[num_tokens, hidden]`` float, projected to the width of the engine.
        extra: further arrays by name, such as deepstack rows; opaque to the core, used by engines
            of the same model family.
        num_bytes: memory of the arrays in bytes, for the feature cache.
    """

    num_tokens: int
    embeddings: Array
    extra: Mapping[str, Array] = field(default_factory=dict)
    num_bytes: int = 0
