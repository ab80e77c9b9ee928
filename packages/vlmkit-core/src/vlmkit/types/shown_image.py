"""How a model was shown one image of a request, told with the answer."""

from dataclasses import dataclass

from vlmkit.types.transform import Transform


@dataclass(frozen=True, slots=True)
class ShownImage:
    """One image of a prompt.

    Attributes:
        num_tokens: tokens whose place its features took.
        is_cached: whether nothing was encoded for it: what it comes to was there already.
        transform: what was done to the picture; None where its processor does not say.
        page: the page of a document that it is, from 1; None of any other image.
    """

    num_tokens: int
    is_cached: bool
    transform: Transform | None = None
    page: int | None = None
