"""What a media encoder makes of one medium, and an engine takes in its place."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vlmkit.interfaces.prompt import Array


@dataclass(frozen=True, slots=True)
class MediaFeatures:
    """What an encoder knows about one medium.

    Attributes:
        num_tokens: rows of ``embeddings``; equals the slot's ``num_features``.
        embeddings: ``[num_tokens, hidden]`` float, projected to the width of the engine.
        extra: further arrays by name (deepstack rows, say); opaque to the core, understood by
            engines of the same model family.
        num_bytes: memory that the arrays take, for the feature cache.
    """

    num_tokens: int
    embeddings: Array
    extra: Mapping[str, Array] = field(default_factory=dict)
    num_bytes: int = 0
