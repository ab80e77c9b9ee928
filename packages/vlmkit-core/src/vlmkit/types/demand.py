"""What a request comes to, told to whoever decides whether it may be answered now."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request takes at most, known when its prompt is made.

    Attributes:
        prompt_tokens: tokens of the prompt, images included.
        image_tokens: placeholder tokens of each image, in order.
        answer_tokens: tokens that all of its answers together may have; 0 where none is made.
        num_choices: how many answers, vectors or scored texts it has.
        unconstrained: parts of schemas that its answers are not held to, such as
            ``search#/properties/word/pattern``: a tool's name, empty for the answer's own schema,
            and a path.
    """

    prompt_tokens: int
    image_tokens: tuple[int, ...] = ()
    answer_tokens: int = 0
    num_choices: int = 1
    unconstrained: tuple[str, ...] = ()

    @property
    def text_tokens(self) -> int:
        """Tokens of the prompt that no image takes."""
        return self.prompt_tokens - sum(self.image_tokens)
