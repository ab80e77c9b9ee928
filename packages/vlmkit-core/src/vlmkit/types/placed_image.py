"""Images with a known position in a prompt that consists of tokens already."""

from dataclasses import dataclass, field

from vlmkit.types.image import Image
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.stage import NO_STAGE, Stage


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image at a position of an already rendered prompt.

    Attributes:
        image: the image.
        start: the position of its first token. The tokens must equal those of the model's own
            rendering.
        stop: the position after its last token, if known.
        digest: the expected digest of its slot, if known: sha256 over content, options and
            processor.
        options: the size in which it was rendered.
        fetch: the stage of getting its file, for the request's timings.
    """

    image: Image
    start: int
    stop: int | None = None
    digest: bytes | None = None
    options: ImageOptions = PLAIN_IMAGE
    fetch: Stage = field(default=NO_STAGE, compare=False)
