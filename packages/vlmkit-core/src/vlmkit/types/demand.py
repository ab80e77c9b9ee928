"""The resources that a request needs, for admission control; makes no decision itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """The maximum resources of one request, known when its prompt is built.

    Attributes:
        prompt_tokens: number of tokens of the prompt, images included.
        image_tokens: number of placeholder tokens of each image, in order.
        answer_tokens: maximum number of tokens of all answers together; 0 if none is generated.
        num_choices: number of answers, vectors or scored texts.
        unconstrained: keywords of schemas that the answers need not match, such as
            ``search#/properties/word/pattern``. Each is a tool's name, empty for the schema of the
            answer, and a path.
        opened_pixels: number of pixels of the images that media loaders made of its files, such as
            pages of documents; they were decoded for the prompt.
    """

    prompt_tokens: int
    image_tokens: tuple[int, ...] = ()
    answer_tokens: int = 0
    num_choices: int = 1
    unconstrained: tuple[str, ...] = ()
    opened_pixels: int = 0

    @property
    def text_tokens(self) -> int:
        """Number of tokens of the prompt outside images."""
        return self.prompt_tokens - sum(self.image_tokens)
