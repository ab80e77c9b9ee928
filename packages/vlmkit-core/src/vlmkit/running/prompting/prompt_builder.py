"""Builds the prompt of a request: opens media, decodes images and tokenizes.

It runs in the caller's thread or in a worker. What the engine makes of the prompt, and whether an
answer fits the context, is checked by request preparation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple, Protocol

from vlmkit.checkpoints.pooling import Pooling
from vlmkit.errors import OutOfMemory, RequestError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames, attributing
from vlmkit.running.prompting.files import Opened, map_error_to_source
from vlmkit.running.prompting.image_decoding import ImageDecoder
from vlmkit.running.prompting.media import MediaPreparation
from vlmkit.running.prompting.parameters import check_ids, check_options
from vlmkit.running.prompting.placed_images import conversation_of, image_slots, texts_between
from vlmkit.running.prompting.prepared_images import PreparedImages
from vlmkit.running.prompting.prompt_info import prompt_info
from vlmkit.running.scheduling.decode_memory import DecodeLease, check_num_pixels, memory_needed
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.message import (
    Message,
    image_parts_of,
    images_of,
)
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.stage import NO_STAGE, ImageTimings, Stage


class BuiltPrompt(NamedTuple):
    """A prompt, and what it was built from.

    Attributes:
        prompt: the prompt, which may be too long.
        messages: the conversation, with all files opened.
        decodes: when images were decoded, by the index of the image.
        source_indices: for each of its images, the index of the image or file that was sent.
    """

    prompt: Prompt
    messages: Seq[Message]
    decodes: Mapping[int, Stage]
    source_indices: Seq[int] = ()

    def sent_media(self) -> dict[int, int]:
        """Return the index of the image or file that was sent, by the index of its slot."""
        slots = [index for index, slot in enumerate(self.prompt.media) if slot.kind == "image"]
        return dict(zip(slots, self.source_indices, strict=False))

    def image_timings(self) -> Iterator[tuple[int, ImageTimings]]:
        """Yield the timings of each image so far, with the index of its slot."""
        parts = list(image_parts_of(self.messages))
        slots = [(index, s) for index, s in enumerate(self.prompt.media) if s.kind == "image"]
        for number, (index, slot) in enumerate(slots):
            fetch = parts[number].fetch if number < len(parts) else NO_STAGE
            decode = self.decodes.get(number, NO_STAGE)
            yield index, ImageTimings(fetch, decode, slot.preprocess)


class PromptBuilder(Protocol):
    """Builds prompts of requests, in this process or in another one."""

    def build(self, request: Request, lease: DecodeLease) -> BuiltPrompt:
        """Return a request's prompt; see :class:`LocalPromptBuilder`."""
        ...


class ReusingPromptBuilder:
    """Keeps what is made of images for later prompts.

    Args:
        prompts: builds the prompts.
        images: where prepared images are kept.
    """

    def __init__(self, prompts: PromptBuilder, images: PreparedImages) -> None:
        self._prompts = prompts
        self._images = images

    def build(self, request: Request, lease: DecodeLease) -> BuiltPrompt:
        """Return a request's prompt; arguments and errors are those of the other builder."""
        made = self._prompts.build(request, lease)
        prompt = self._images.keep(request, made.prompt, images_of(made.messages))
        return made._replace(prompt=prompt)

    def tokens(self, request: Request, lease: DecodeLease) -> PromptTokens:
        """Return the description of a request's prompt; see :meth:`build`."""
        made = self.build(request, lease)
        return prompt_info(made.prompt, image_parts_of(made.messages))


class LocalPromptBuilder:
    """Builds prompts for one model, in this process.

    Args:
        tokenizer: the tokenizer.
        media: opens and checks the media of conversations.
        decoder: decodes images.
        pooling: returns how hidden states become a vector.
        limits: the limits of the engine.
        bounds: the bounds of one request.
        component_names: the name of the tokenizer's provider.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        media: MediaPreparation,
        decoder: ImageDecoder,
        pooling: Callable[[], Pooling],
        limits: EngineLimits,
        bounds: PipelineSettings,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._component_names = component_names
        self._tokenizer = tokenizer
        self._media = media
        self._decoder = decoder
        self._pooling = pooling
        self._limits = limits
        self._bounds = bounds

    def build(self, request: Request, lease: DecodeLease) -> BuiltPrompt:
        """Return a request's prompt, and what it was built from.

        Args:
            request: the request.
            lease: its lease of decode memory, with its cancellation. The lease is granted, and is
                enlarged here for images in files.

        Raises:
            RequestCancelled: the request was cancelled.
            RequestError: the request is invalid.
            OutOfMemory: there is not enough memory now.
        """
        lease.cancellation.check()
        is_plain = request.text is not None or request.token_ids is not None
        if bool(request.messages) == is_plain or None not in (request.text, request.token_ids):
            problem = (
                "messages, text and token_ids exclude each other"
                if is_plain
                else "messages is empty"
            )
            raise RequestError(problem, param="messages")
        check_options(request, self._tokenizer)
        try:
            if request.images:
                shown = self._media.read(
                    conversation_of(request.images), lease.cancellation
                ).messages
                made = self._from_token_ids(shown, request, lease)
            elif is_plain:
                made = BuiltPrompt(Prompt(self._plain_tokens(request), is_plain=True), (), {})
            else:
                opened = self._media.read(request.messages, lease.cancellation)
                made = self._from_conversation(opened, request, lease)
        except MemoryError as error:
            raise OutOfMemory("this prompt") from error
        if not made.prompt.token_ids:
            raise RequestError("the prompt has no tokens", param="messages")
        return made

    def _from_conversation(
        self, opened: Opened, request: Request, lease: DecodeLease
    ) -> BuiltPrompt:
        """Return the prompt of a conversation."""
        options = request.options
        messages = opened.messages
        images = () if options.light else list(images_of(messages))
        check_num_pixels(images, self._bounds.max_decoding_pixels)
        need = memory_needed(images, self._bounds.max_decoding_bytes)
        lease.enlarge(need.num_bytes, self._bounds.prepare_timeout_s)
        try:
            with self._decoder.decoded(images, lease) as decodes, self._attributing():
                prompt = self._tokenizer.prompt(messages, tools=request.tools, options=options)
        except RequestError as error:
            map_error_to_source(error, opened.source_indices)
            raise
        if options.continue_final_message:
            prompt = replace(prompt, is_plain=True)
        return BuiltPrompt(prompt, messages, decodes, opened.source_indices)

    def _from_token_ids(
        self, shown: Seq[Message], request: Request, lease: DecodeLease
    ) -> BuiltPrompt:
        """Return the prompt of token ids with images among them."""
        if request.token_ids is None:
            raise RequestError("images of their own need token_ids", param="images")
        token_ids = tuple(request.token_ids)
        images = images_of(shown)
        with self._decoder.decoded(images, lease) as decodes, self._attributing():
            prompt = self._tokenizer.prompt(shown)
        media = image_slots(request.images, prompt, token_ids, self._tokenizer.banned_ids)
        for text in texts_between(media, token_ids):  # the tokens of an image may have no logit
            check_ids(text, self._limits, "token_ids")
        prompt = Prompt(token_ids, media, is_plain=True)
        return BuiltPrompt(prompt, shown, decodes, range(len(media)))

    def _plain_tokens(self, request: Request) -> tuple[int, ...]:
        """Return the tokens of a plain text, or the given token ids."""
        if request.token_ids is not None:
            check_ids(request.token_ids, self._limits, "token_ids")
            return tuple(request.token_ids)
        prefix = self._pooling().prefix if request.task == "embed" else ""
        text = prefix + (request.text or "")
        with self._attributing():
            return tuple(self._tokenizer.encode(text, adds_special=request.adds_special))

    def _attributing(self) -> AbstractContextManager[None]:
        return attributing(self._component_names, "tokenizer", "this prompt")
