"""What a tokenizer makes of a conversation: token ids, and the images that stand among them.

Token ranges are half-open, written ``[start, stop)``, and count from the start of the prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class Array(Protocol):
    """Any array that can cross a library's border without a copy (DLPack)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, outermost axis first."""
        ...

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class Span(NamedTuple):
    """A half-open range of token positions."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Transform:
    """What happened to one image on its way into the model, so that answers can be mapped back.

    Attributes:
        source_size: ``(height, width)`` of the file, before it was turned upright.
        turned: whether an orientation tag turned the picture.
        upright_size: ``(height, width)`` after turning; boxes are reported in these pixels.
        used_size: ``(height, width)`` of the resized picture that the model looked at.
        scale: ``(vertical, horizontal)``: used pixels per upright pixel.
        crop: ``(top, left, bottom, right)`` of the used picture that was kept; None is all of it.
        pad: ``(top, left, bottom, right)`` pixels that were added around the used picture.
        num_tiles: how many pictures of the model's own size the image was cut into.
    """

    source_size: tuple[int, int]
    turned: bool
    upright_size: tuple[int, int]
    used_size: tuple[int, int]
    scale: tuple[float, float]
    crop: tuple[int, int, int, int] | None = None
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    num_tiles: int = 1


@dataclass(frozen=True, slots=True)
class ImageSlot:
    """One image's place in a prompt, and what its encoder needs.

    Attributes:
        start: first token that belongs to the image.
        stop: one past the last. Families put row or tile markers inside, so the range may hold
            more tokens than the image has feature rows.
        digest: sha256 over pixels, size, options and processor: equal digests mean that the
            encoder would compute the same features.
        inputs: the processor's arrays for this one image, by the processor's own names.
        num_features: how many tokens of the range are replaced by a feature row each.
        transform: what was done to the picture; None where the processor does not say.
    """

    start: int
    stop: int
    digest: bytes
    inputs: Mapping[str, Array]
    num_features: int
    transform: Transform | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation, ready for an engine.

    Attributes:
        token_ids: ``[seq]`` with every image expanded to its placeholder tokens.
        images: the image slots, in order, never overlapping.
    """

    token_ids: tuple[int, ...]
    images: tuple[ImageSlot, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.token_ids)
