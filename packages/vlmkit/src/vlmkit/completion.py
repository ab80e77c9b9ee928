"""What a request gives: chunks while it runs, a completion when it is over, usage and timings.

Plain values; how they travel is the channel's and the stream's business.
"""

from dataclasses import dataclass, field
from typing import Literal

from vlmkit.protocols import Sample

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one choice.

    Attributes:
        index: which choice.
        text: what is new to show; may be empty while text is held back.
        samples: the tokens that were chosen since the last chunk.
        finish_reason: why the choice ended; None while it goes on.
    """

    index: int
    text: str
    samples: tuple[Sample, ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took.

    Attributes:
        prompt_tokens: tokens of the prompt, images included.
        completion_tokens: tokens chosen, over all choices.
        cached_tokens: prompt tokens that were found in the cache, for the first choice.
        image_tokens: placeholder tokens of each image, in order.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went, in seconds.

    Attributes:
        prompt_s: template, image preprocessing and tokenising.
        queue_s: from submission to the first step that computed any of it.
        first_token_s: from that step to the first token.
        decode_s: from the first token to the end.
    """

    prompt_s: float = 0.0
    queue_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0


@dataclass(slots=True)
class Choice:
    """One finished answer."""

    text: str = ""
    finish_reason: FinishReason | None = None
    samples: list[Sample] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        """The tokens that were chosen, the ending one included."""
        return [sample.token_id for sample in self.samples]


@dataclass(frozen=True, slots=True)
class Completion:
    """Everything that a request gave."""

    choices: list[Choice]
    usage: Usage
    timings: Timings

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text
