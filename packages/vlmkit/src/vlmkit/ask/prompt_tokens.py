"""What a prompt comes to, told to those who only count."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt.

    Attributes:
        token_ids: all of them, with every image expanded to its placeholder tokens.
        image_tokens: placeholder tokens of each image, in order.
    """

    token_ids: tuple[int, ...]
    image_tokens: tuple[int, ...] = ()
