"""What a request gives: chunks while it runs, a completion when it is over, usage and timings.

Plain values; how they travel is the channel's and the stream's business.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from vlmkit.types.delta import Delta, text_of
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.sample import Sample
from vlmkit.types.shown_image import ShownImage
from vlmkit.types.stage import ImageTimings
from vlmkit.types.tool_call import ToolCallPart

if TYPE_CHECKING:
    from numpy import ndarray

MAX_SHOWN_CHARS = 80
FinishReason = Literal["stop", "length", "abort"]


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A piece of one choice; made for nearly every token, in half of a dataclass's time.

    Attributes:
        index: which choice.
        deltas: what is new; empty while something is held back.
        samples: the tokens that were chosen, or scored, since the last chunk.
        finish_reason: why the choice ended; None while it goes on.
        embedding: ``[hidden]`` float32, with the last chunk of a text that is embedded.
        stop_string: with the last chunk of a choice that a stop string ended: which.
        places: with the last chunk of a choice: those that it names, where they were asked for.
    """

    index: int
    deltas: tuple[Delta, ...] = ()
    samples: tuple[Sample, ...] = ()
    finish_reason: FinishReason | None = None
    embedding: "ndarray[Any, Any] | None" = None
    stop_string: str | None = None
    places: tuple[GroundedRegion, ...] = ()

    @property
    def text(self) -> str:
        """What is new of the text."""
        return text_of(self.deltas)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took.

    Attributes:
        prompt_tokens: tokens of the prompt, images included.
        completion_tokens: tokens chosen or scored, over all choices.
        cached_tokens: prompt tokens that were found in the cache, for the first choice.
        image_tokens: placeholder tokens of each image, in order.
        reasoning_tokens: how many of the completion's tokens are reasoning, marks included.
        images: how each image was shown, in order; cached or not for the first choice.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: tuple[int, ...] = ()
    reasoning_tokens: int = 0
    images: tuple[ShownImage, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went, in seconds.

    Attributes:
        prompt_s: template, image preprocessing and tokenising.
        queue_s: from submission to the first step that computed any of it.
        first_token_s: from that step to the first token.
        decode_s: from the first token to the end.
        began_s: when the prompt began to be made, in seconds since the epoch.
        images: where the time of each image went, in order.
    """

    prompt_s: float = 0.0
    queue_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    began_s: float = 0.0
    images: tuple[ImageTimings, ...] = ()


@dataclass(slots=True)
class Choice:
    """One finished answer.

    Attributes:
        text: what the model says.
        reasoning: what it thought before; empty where it does not think aloud.
        tool_calls: tools that it calls; its arguments may be anything.
        finish_reason: why it ended. An answer of full length may have ended inside its reasoning.
        samples: all of its tokens.
        embedding: ``[hidden]`` float32 of a text that was embedded.
        stop_string: the one that ended it, if one did.
        places: those in the image that it names, where they were asked for.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallPart] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    samples: list[Sample] = field(default_factory=list, repr=False)
    embedding: "ndarray[Any, Any] | None" = field(default=None, repr=False)
    stop_string: str | None = None
    places: tuple[GroundedRegion, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        """The tokens that were chosen or scored, the ending one included."""
        return [sample.token_id for sample in self.samples]


@dataclass(frozen=True, slots=True, repr=False)
class Completion:
    """Everything that a request gave, and the tokens of its prompt, images expanded."""

    choices: list[Choice]
    usage: Usage
    timings: Timings
    prompt_token_ids: tuple[int, ...] = ()

    def __repr__(self) -> str:
        """Return the beginning of the answer, why it ended, and its numbers of tokens."""
        first, others = self.choices[0], len(self.choices) - 1
        text = first.text[:MAX_SHOWN_CHARS] + "..." * (len(first.text) > MAX_SHOWN_CHARS)
        more = f" and {others} more" if others else ""
        used = f"prompt_tokens={self.usage.prompt_tokens}"
        used += f", completion_tokens={self.usage.completion_tokens}"
        return f"Completion({text!r}{more}, finish_reason={first.finish_reason!r}, {used})"

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text
