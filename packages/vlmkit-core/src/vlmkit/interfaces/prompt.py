"""Prompts: the token ids of a conversation, and the media among them.

A tokenizer builds them, and an engine computes them. Token ranges are half-open, written ``[start,
stop)``, and count from the start of the prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from vlmkit.interfaces.chat_format import Calling, ChannelFormat, Mark
from vlmkit.interfaces.grounding_format import GroundingFormat
from vlmkit.types.prepared_image import PreparedImage
from vlmkit.types.stage import NO_STAGE, Stage
from vlmkit.types.transform import Transform


class Array(Protocol):
    """Any array that another library can use without a copy (DLPack)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, outermost axis first."""
        ...

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class Span(NamedTuple):
    """A half-open range of token positions."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class MediaSlot:
    """The position of one image, sound or other medium in a prompt, and its encoder inputs.

    Attributes:
        start: first token that belongs to the medium.
        stop: one past the last. Some model families put row or tile markers inside, so the range
            may hold more tokens than the medium has feature rows.
        digest: sha256 over content, options and processor. Equal digests mean that the encoder
            would compute the same features.
        inputs: the processor's arrays for this one medium, by the processor's own names.
        num_features: number of tokens of the range that a feature row each replaces. For a
            cross-attention model, the number of placeholders.
        kind: the kind of medium, such as ``image``; tokenizer and encoder must agree on it.
        num_encoded: rows that the encoder computes for a cross-attention model; 0 means
            ``num_features``.
        around: texts before and after the medium's tokens, which the tokenizer adds to the text of
            the prompt. None if the slot holds for this prompt alone. Otherwise later prompts may
            show the image as ``Image.prepared``, and the tokenizer then uses the slot again.
        transform: how an image was resized and cropped; None if the processor does not say.
        preprocess: the stage of preparing the inputs, for the request's timings; zeros if unknown.
    """

    start: int
    stop: int
    digest: bytes
    inputs: Mapping[str, Array]
    num_features: int
    kind: str = "image"
    transform: Transform | None = None
    preprocess: Stage = field(default=NO_STAGE, compare=False)
    num_encoded: int = 0
    around: tuple[str, str] | None = None

    @classmethod
    def of_prepared(cls, image: PreparedImage, start: int) -> "MediaSlot":
        """Return the slot of an image that an earlier prompt had, from a position on."""
        return cls(
            start,
            start + len(image.token_ids),
            image.digest,
            image.inputs,
            image.num_features,
            transform=image.transform,
            num_encoded=image.num_encoded,
            around=image.around,
        )

    @property
    def encoder_tokens(self) -> int:
        """Tokens that the medium counts for in the encoder's budget."""
        return max(self.num_features, self.num_encoded)


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """An engine's analysis of a prompt, made before the prompt is scheduled.

    Attributes:
        spans: token ranges that must each be computed in one work item; ordered, disjoint.
        state: state that the engine keeps for the sequence's lifetime; opaque, never changed.
        max_shared_tokens: how many of the first tokens other sequences may share; None is all.
    """

    spans: tuple[Span, ...] = ()
    state: Any = None
    max_shared_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation, ready for an engine.

    Attributes:
        token_ids: ``[seq]`` with every medium expanded to its placeholder tokens.
        media: the slots of media, in order, never overlapping.
        opens_reasoning: whether the template opened the answer's reasoning, so that the answer
            starts inside it.
        is_plain: whether the prompt ends inside a text: it is no conversation, or its last message
            is continued. The answer is then plain text.
        calling: the tools that the answer may call, and the format of calls; None if there are no
            tools, or the format is unknown.
        place_format: the format of boxes and points in the answer; None if unknown.
        channels: the format of an answer that consists of messages; None if it is a single one.
        reasoning_marks: the delimiters of reasoning at the start of an answer; None for a model
            without reasoning, or with a channel for it.
    """

    token_ids: tuple[int, ...]
    media: tuple[MediaSlot, ...] = field(default=())
    opens_reasoning: bool = False
    is_plain: bool = False
    calling: Calling | None = None
    place_format: GroundingFormat | None = None
    channels: ChannelFormat | None = None
    reasoning_marks: tuple[Mark, Mark] | None = None

    def __len__(self) -> int:
        return len(self.token_ids)
