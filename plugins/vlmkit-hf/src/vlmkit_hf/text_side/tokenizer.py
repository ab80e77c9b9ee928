"""The text side of a Hugging Face checkpoint: conversations to prompts, tokens to text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from vlmkit.errors import RequestError
from vlmkit.interfaces.chat_format import CallFormat, Calling, ChannelFormat
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import PLAIN, Option
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.grounding_formats import BY_FAMILY
from vlmkit.kit.harmony_parser import HarmonyParser
from vlmkit.kit.plain_parser import PlainParser
from vlmkit.kit.reasoning_parser import ReasoningParser
from vlmkit.kit.tool_call_parser import ToolCallParser
from vlmkit.types.message import Message, image_parts_of, refuse_other_media
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_hf.chat.channels import continued, with_token_ids as channels_with_token_ids
from vlmkit_hf.chat.conversation import Conversations
from vlmkit_hf.chat.tool_call_formats import with_token_ids
from vlmkit_hf.images.side import ImageSide
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.templates.reasoning import ReasoningMarks
from vlmkit_hf.templates.sources import DEFAULT, GIVE_ONE, WITH_TOOLS, origin_of
from vlmkit_hf.templates.stand_ins import Segment
from vlmkit_hf.templates.template import ChatTemplate
from vlmkit_hf.text_side.image_placement import ImagePlacement
from vlmkit_hf.text_side.parts import TextParts, resolve_parts
from vlmkit_hf.text_side.vocabulary import control_tokens, refuse_unknown_tokens, silent_tokens
from vlmkit_hf.tokens.detokenizer import HfTokenStream, TokenBytes
from vlmkit_hf.tokens.text_encoder import TextEncoder

_OPTIONS: frozenset[Option] = frozenset(get_args(Option))
_OPTIONS_OF_SIZES: frozenset[Option] = frozenset({"image_detail", "mm_processor_kwargs"})
_IMAGE_OPTIONS: frozenset[Option] = _OPTIONS_OF_SIZES | {"max_image_tokens", "return_places"}
NUM_BEFORE = 8  # tokens before an answer that decide how its text continues


class HfTokenizer:
    """One checkpoint's tokenizer, chat template and image processor.

    Args:
        checkpoint: the model's files.
        settings: see :class:`HfTokenizerSettings`.
        parts: the parts of the text side; None lets transformers resolve them.

    Raises:
        CheckpointError: the files have no tokenizer, or a processor that is not supported.
        ConfigError: the chat template of the settings cannot be read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: HfTokenizerSettings,
        parts: TextParts | None = None,
    ) -> None:
        parts = parts or resolve_parts(checkpoint, settings)
        self._images: ImageSide | None = parts.images
        self._backend = parts.backend
        templates = {
            name: ChatTemplate(
                source, parts.named, checkpoint.name, origin_of(name, checkpoint, settings)
            )
            for name, source in parts.templates.items()
            if name in (DEFAULT, WITH_TOOLS)
        }
        template = templates.get(DEFAULT)
        placeholder = self._images.placeholder if self._images else None
        self._conversations = {
            name: Conversations(each, placeholder, is_for_tools=name == WITH_TOOLS)
            for name, each in templates.items()
        }
        self._knows_effort = template is not None and template.effort.is_known
        self._added: Mapping[str, int] = parts.added
        channels = self._conversations[DEFAULT].channels if DEFAULT in self._conversations else None
        self._channels = channels_with_token_ids(channels, self._added) if channels else None
        self._marks = None if self._channels else _marks(template, self._added)
        control = control_tokens(parts, templates.values(), self._marks)
        self._encoder = TextEncoder(self._backend, control, slot_like=placeholder)
        self._placement: ImagePlacement | None = None
        if self._images is not None:
            self._images.check(self._encoder)
            self._placement = ImagePlacement(self._images, self._encoder, parts.bos)
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        refuse_unknown_tokens(checkpoint, vocabulary, silent_tokens(parts, templates.values()))
        self._place_format = BY_FAMILY.get(checkpoint.model_type)
        self._token_bytes = TokenBytes(self._backend)
        self._vocab_size: int = 1 + max(vocabulary.values())
        self._eos_ids = parts.eos_ids

    @property
    def vocab_size(self) -> int:
        """The number of token ids that can be decoded."""
        return self._vocab_size

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self._eos_ids

    @property
    def banned_ids(self) -> frozenset[int]:
        """The placeholders of images, video and sound, which have no meaning in an answer."""
        banned = self._images.banned_ids if self._images else frozenset()
        return frozenset(i for i in banned if 0 <= i < self._vocab_size) - self._eos_ids

    @property
    def honours(self) -> frozenset[Option]:
        """All options, except those of images and efforts that this model does not support."""
        options = _OPTIONS if self._knows_effort else _OPTIONS - {"reasoning_effort"}
        if self._place_format is None:
            options -= {"return_places"}
        if self._images is None:
            return options - _IMAGE_OPTIONS
        return options if self._images.has_sizes else options - _OPTIONS_OF_SIZES

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Render the chat template, expand images to placeholders, preprocess their pixels.

        Raises:
            RequestError: the template refuses these roles, or the model takes no images.
            ImageError: the processor refuses an image.
        """
        refuse_other_media(messages, {"image"})
        parts = list(image_parts_of(messages))
        self._check_images(len(parts))
        chat = self._conversation_for(tools)
        if chat is None:
            raise RequestError(
                "this model has no chat template",
                param="messages",
                code="no_chat_template",
                hint=GIVE_ONE,
            )
        layout = self._images.layout(len(parts)) if self._images else None
        segments = chat.segments(messages, tools, layout, options)
        # A processor adds the begin-of-sequence token if it is missing. The template of a text
        # model is used unchanged.
        adds_special = False
        if self._placement is not None:
            segments = self._placement.completed(segments)
            adds_special = not self._placement.has_bos(segments)
        channels = continued(self._channels, segments) if self._channels else None
        if channels is not None:
            opens = channels.opens == channels.reasoning
        else:
            opens = self._marks is not None and self._marks.opened_by(segments)
        written = partial(
            replace,
            opens_reasoning=opens,
            calling=self._calling(tools, channels),
            channels=channels,
            reasoning_marks=self._marks.as_tokens(self._added) if self._marks else None,
        )
        if self._placement is None or not parts:
            token_ids = self._encoder.encode(segments, adds_special=adds_special)
            return written(Prompt(tuple(token_ids)))
        prompt = self._placement.prompt(
            segments, parts, without_pixels=options.light, adds_special=adds_special
        )
        return written(prompt, place_format=self._place_format)

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the token ids of plain text; no string in it becomes a special token."""
        return self._encoder.encode([Segment(text, is_client=True)], adds_special=adds_special)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        known = [i for i in token_ids if 0 <= i < self._vocab_size]
        text: str = self._backend.decode(known, skip_special_tokens=True)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token stands for; may be part of a character."""
        return self._token_bytes(token_id)

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        """Return a new parser of an answer, for this model's marks of reasoning and tool calls."""
        stream = partial(
            HfTokenStream,
            self._backend,
            self._vocab_size,
            shows_special=shows_special,
            after=prompt.token_ids[-NUM_BEFORE:] if prompt.is_plain else (),
        )
        if prompt.is_plain:
            return PlainParser(stream())
        calling = prompt.calling
        if prompt.channels is not None:
            tools = calling.tools if calling else ()
            return HarmonyParser(stream, prompt.channels, tools)
        said = None
        if calling is not None and isinstance(calling.format, CallFormat):
            said = ToolCallParser(stream, calling.format, calling.tools)
        if self._marks is None:
            return said or PlainParser(stream())
        start, end = self._marks.as_tokens(self._added)
        return ReasoningParser(stream, start, end, is_open=prompt.opens_reasoning, said=said)

    def _conversation_for(self, tools: Sequence[Mapping[str, Any]] | None) -> Conversations | None:
        """Return the template for a conversation: some models have one for tools alone."""
        if tools and WITH_TOOLS in self._conversations:
            return self._conversations[WITH_TOOLS]
        return self._conversations.get(DEFAULT)

    def _calling(
        self, tools: Sequence[Mapping[str, Any]] | None, channels: ChannelFormat | None
    ) -> Calling | None:
        """Return how an answer may call tools; None if the format is unknown."""
        chat = self._conversation_for(tools)
        form = chat.call_format if chat and tools else None
        if form is None or not tools:
            return None
        if isinstance(form, ChannelFormat):
            if channels is None or channels.opens == channels.said:
                return None
            return Calling(channels, tuple(tools))
        return Calling(with_token_ids(form, self._added), tuple(tools))

    def _check_images(self, num_images: int) -> None:
        if self._placement is not None:
            self._placement.check(num_images)
        elif num_images:
            raise RequestError(
                "this model takes no images", param="messages", code="images_not_supported"
            )


def _marks(template: ChatTemplate | None, added: Mapping[str, int]) -> ReasoningMarks | None:
    """Return the marks of reasoning that the template has, or else the vocabulary."""
    known = ReasoningMarks.of(template.mentions) if template else None
    return known or ReasoningMarks.of(added.__contains__)
