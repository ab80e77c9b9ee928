"""An image whose place in a prompt is known, because the prompt is tokens already."""

from dataclasses import dataclass, field

from vlmkit.types.image import Image
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.stage import NO_STAGE, Stage


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image among tokens that somebody rendered before.

    Attributes:
        image: the image.
        start: the first of its tokens, which must be those that the model gives to it.
        stop: one past the last of them, if that is known.
        digest: what its slot must have as its digest, if that is known: sha256 over content,
            options and processor.
        options: how large it was shown there.
        fetch: getting its file, for the request's timings.
    """

    image: Image
    start: int
    stop: int | None = None
    digest: bytes | None = None
    options: ImageOptions = PLAIN_IMAGE
    fetch: Stage = field(default=NO_STAGE, compare=False)
