"""How a model saw one image of a request, returned with the answer."""

from dataclasses import dataclass

from vlmkit.types.transform import Transform


@dataclass(frozen=True, slots=True)
class ShownImage:
    """One image of a prompt.

    Attributes:
        num_tokens: number of tokens that its features replaced.
        is_cached: whether its features, or its part of the prefix, were cached, so that the encoder
            did not run.
        transform: how the image was resized and cropped; None if its processor does not say.
        page: its page number in a document, from 1; None for other images.
    """

    num_tokens: int
    is_cached: bool
    transform: Transform | None = None
    page: int | None = None
