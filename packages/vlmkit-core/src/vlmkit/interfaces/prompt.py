"""What a tokenizer makes of a conversation: token ids, and the media that stand among them.

Token ranges are half-open, written ``[start, stop)``, and count from the start of the prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from vlmkit.interfaces.chat_format import Calling, ChannelFormat, Mark
from vlmkit.interfaces.grounding_format import GroundingFormat
from vlmkit.types.stage import NO_STAGE, Stage
from vlmkit.types.transform import Transform


class Array(Protocol):
    """Any array that can cross a library's border without a copy (DLPack)."""

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
    """The place in a prompt of one image, sound or other medium, and what its encoder needs.

    Attributes:
        start: first token that belongs to the medium.
        stop: one past the last. Families put row or tile markers inside, so the range may hold
            more tokens than the medium has feature rows.
        digest: sha256 over content, options and processor: equal digests mean that the encoder
            would compute the same features.
        inputs: the processor's arrays for this one medium, by the processor's own names.
        num_features: how many tokens of the range are replaced by a feature row each; its
            placeholders where a decoder looks at the medium beside the text.
        kind: what it is, such as ``image``; chosen by who makes and who encodes it.
        num_encoded: rows that its encoder computes, where a decoder looks at them beside the text;
            0 is as many as ``num_features``.
        transform: what was done to a picture; None where the processor does not say.
        preprocess: making the inputs, for the request's timings; zeros where nobody says.
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

    @property
    def encoder_tokens(self) -> int:
        """What the medium counts for while it is encoded."""
        return max(self.num_features, self.num_encoded)


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """What an engine made of a prompt before its turn came.

    Attributes:
        spans: token ranges that must be computed in one work item; ordered, disjoint.
        state: whatever the engine wants to keep for the sequence's life; opaque, never changed.
    """

    spans: tuple[Span, ...] = ()
    state: Any = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation, ready for an engine.

    Attributes:
        token_ids: ``[seq]`` with every medium expanded to its placeholder tokens.
        media: the slots of media, in order, never overlapping.
        opens_reasoning: whether the template began the answer's reasoning, so that the answer goes
            on inside it.
        is_plain: whether it ends inside a text (it is no conversation, or its last message goes
            on), so that what follows is more of it and text alone.
        calling: how the answer may call the tools that the conversation offers; None where there
            are none, or it is not known.
        place_format: how the answer writes places in pictures; None where that is not known.
        channels: how the messages are written that the answer consists of; None where it is one.
        reasoning_marks: what begins and ends reasoning at the beginning of an answer; None for a
            model that does not reason, or has a channel for it.
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
