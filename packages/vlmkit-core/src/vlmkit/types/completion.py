"""The results of a request: chunks while it runs, then a completion with usage and timings.

Plain values; channel and stream deliver them.
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
    """A piece of one choice.

    A struct, because one is created for nearly every token, in half of a dataclass's time.

    Attributes:
        index: the index of the choice.
        deltas: the new parts of the answer; empty while text is held back.
        samples: the tokens that were chosen or scored since the last chunk.
        finish_reason: why the choice ended; None in all but the last chunk.
        embedding: ``[hidden]`` float32, in the last chunk of an embedded text.
        stop_string: the stop string that ended the choice, in its last chunk.
        places: the boxes and points that the choice names, in its last chunk, if requested.
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
        """The new text."""
        return text_of(self.deltas)


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens that a request used.

    Attributes:
        prompt_tokens: number of tokens of the prompt, images included.
        completion_tokens: number of tokens chosen or scored, over all choices.
        cached_tokens: number of prompt tokens found in the cache, for the first choice.
        image_tokens: number of placeholder tokens of each image, in order.
        reasoning_tokens: number of completion tokens that are reasoning, delimiters included.
        images: how the model saw each image, in order; ``is_cached`` is that of the first choice.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: tuple[int, ...] = ()
    reasoning_tokens: int = 0
    images: tuple[ShownImage, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """The time that the stages of a request took, in seconds.

    Attributes:
        prompt_s: chat template, image preprocessing and tokenising.
        queue_s: from submission to the first step that computed a part of the request.
        first_token_s: from that step to the first token.
        decode_s: from the first token to the end.
        began_s: when the preparation of the prompt began, in seconds since the epoch.
        images: the timings of each image, in order.
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
        text: the text of the answer.
        reasoning: the reasoning before the text; empty for a model without reasoning.
        tool_calls: the tool calls; a model may write anything as their arguments.
        finish_reason: why the answer ended. With ``length`` it may have ended inside the reasoning.
        samples: all tokens of the answer.
        embedding: ``[hidden]`` float32 of an embedded text.
        stop_string: the stop string that ended the answer, if any.
        places: the boxes and points that the answer names, if requested.
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
        """The tokens that were chosen or scored, including one that ended the answer."""
        return [sample.token_id for sample in self.samples]


@dataclass(frozen=True, slots=True, repr=False)
class Completion:
    """The complete result of a request, with the tokens of its prompt, images expanded."""

    choices: list[Choice]
    usage: Usage
    timings: Timings
    prompt_token_ids: tuple[int, ...] = ()

    def __repr__(self) -> str:
        """Return the start of the answer, its finish reason and its token counts."""
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
