"""From a request to its prompt: media opened, images decoded, tokens made.

Runs in the thread of whoever asks, or in a worker. What the engine makes of a prompt, and whether
an answer to it fits the context, is the intake's business.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple, Protocol

import msgspec

from vlmkit.checkpoints.pooling import Pooling
from vlmkit.errors import OutOfMemory, RequestError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames, attributing
from vlmkit.running.prompting.files import Opened, blame_sent
from vlmkit.running.prompting.image_decoding import ImageDecoder
from vlmkit.running.prompting.media import MediaPreparation
from vlmkit.running.prompting.parameters import check_ids, check_options
from vlmkit.running.prompting.placed_images import between, placed, showing
from vlmkit.running.prompting.prompt_info import prompt_info
from vlmkit.running.scheduling.decode_memory import DecodeLease, check_num_pixels, needed
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.message import (
    Message,
    ReasoningPart,
    TextPart,
    image_parts_of,
    images_of,
    parts_of,
)
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.stage import NO_STAGE, ImageTimings, Stage
from vlmkit.types.tool_call import ToolCallPart

MAX_SHORT_CHARS = 2**14  # are tokens in milliseconds


class BuiltPrompt(NamedTuple):
    """A prompt, and what it was made of.

    Attributes:
        prompt: may be too long.
        messages: the conversation with all of its files opened.
        decodes: how long decoding took, by the places of images.
        origins: for each of its images, which of the images and files it was that were sent.
    """

    prompt: Prompt
    messages: Seq[Message]
    decodes: Mapping[int, Stage]
    origins: Seq[int] = ()

    def sent_media(self) -> dict[int, int]:
        """Return which of the images and files that were sent each image is of, by its place."""
        places = [place for place, slot in enumerate(self.prompt.media) if slot.kind == "image"]
        return dict(zip(places, self.origins, strict=False))

    def image_timings(self) -> Iterator[tuple[int, ImageTimings]]:
        """Yield where the time of each image went so far, with its place among the media."""
        parts = list(image_parts_of(self.messages))
        slots = [(place, s) for place, s in enumerate(self.prompt.media) if s.kind == "image"]
        for number, (place, slot) in enumerate(slots):
            fetch = parts[number].fetch if number < len(parts) else NO_STAGE
            decode = self.decodes.get(number, NO_STAGE)
            yield place, ImageTimings(fetch, decode, slot.preprocess)


def is_constrained(request: Request) -> bool:
    """Tell whether a constraint must be compiled: tools that may be called make one."""
    may_call = bool(request.tools) and request.tool_choice != "none"
    return request.constraint is not None or may_call


def is_short(request: Request) -> bool:
    """Tell whether a request is a short text, which is tokenized in milliseconds."""
    if request.images:
        return False
    texts = [request.text or "", *(c for c in request.continuations if isinstance(c, str))]
    for part in parts_of(request.messages):
        if isinstance(part, TextPart | ReasoningPart):
            texts.append(part.text)
        elif isinstance(part, ToolCallPart):
            texts.append(part.arguments)
        else:
            return False
    num_chars = sum(map(len, texts)) + len(msgspec.json.encode(request.tools))
    return num_chars < MAX_SHORT_CHARS


class PromptBuilder(Protocol):
    """Makes prompts of requests, here or elsewhere."""

    def made(self, request: Request, place: DecodeLease) -> BuiltPrompt:
        """Return a request's prompt; see :class:`LocalPromptBuilder`."""
        ...

    def tokens(self, request: Request, place: DecodeLease) -> PromptTokens:
        """Return what a request's prompt comes to; see :class:`LocalPromptBuilder`."""
        ...


class LocalPromptBuilder:
    """Makes prompts for one model.

    Args:
        tokenizer: makes tokens.
        media: opens and checks what a conversation shows.
        pictures: decodes images.
        pooling: returns how hidden states become a vector.
        limits: of the engine.
        bounds: of one request.
        component_names: who made the tokenizer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        media: MediaPreparation,
        pictures: ImageDecoder,
        pooling: Callable[[], Pooling],
        limits: EngineLimits,
        bounds: PipelineSettings,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._component_names = component_names
        self._tokenizer = tokenizer
        self._media = media
        self._pictures = pictures
        self._pooling = pooling
        self._limits = limits
        self._bounds = bounds

    def made(self, request: Request, place: DecodeLease) -> BuiltPrompt:
        """Return a request's prompt, and what it was made of.

        Args:
            request: what is asked.
            place: its room for images, which it has already but for those in files; and whether
                it was cancelled.

        Raises:
            RequestCancelled: it was cancelled.
            RequestError: it is wrong.
            OutOfMemory: this machine has no room for it now.
        """
        place.cancellation.check()
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
                shown = self._media.read(showing(request.images), place.cancellation).messages
                made = self._placed(shown, request, place)
            elif is_plain:
                made = BuiltPrompt(Prompt(self._plain(request), is_plain=True), (), {})
            else:
                opened = self._media.read(request.messages, place.cancellation)
                made = self._written(opened, request, place)
        except MemoryError as error:
            raise OutOfMemory("this prompt") from error
        if not made.prompt.token_ids:
            raise RequestError("the prompt has no tokens", param="messages")
        return made

    def tokens(self, request: Request, place: DecodeLease) -> PromptTokens:
        """Return what a request's prompt comes to; arguments and errors as for :meth:`made`."""
        made = self.made(request, place)
        return prompt_info(made.prompt, image_parts_of(made.messages))

    def _written(self, opened: Opened, request: Request, place: DecodeLease) -> BuiltPrompt:
        """Return the prompt of a conversation."""
        options = request.options
        messages = opened.messages
        images = () if options.light else list(images_of(messages))
        check_num_pixels(images, self._bounds.max_decoding_pixels)
        need = needed(images, self._bounds.max_decoding_bytes)
        place.enlarge(need.num_bytes, self._bounds.prepare_timeout_s)
        try:
            with self._pictures.decoded(images, place) as decodes, self._blaming():
                prompt = self._tokenizer.prompt(messages, tools=request.tools, options=options)
        except RequestError as error:
            blame_sent(error, opened.origins)
            raise
        if options.continue_final_message:
            prompt = replace(prompt, is_plain=True)
        return BuiltPrompt(prompt, messages, decodes, opened.origins)

    def _placed(self, shown: Seq[Message], request: Request, place: DecodeLease) -> BuiltPrompt:
        """Return the prompt of tokens that images stand among."""
        if request.token_ids is None:
            raise RequestError("images of their own need token_ids", param="images")
        token_ids = tuple(request.token_ids)
        images = images_of(shown)
        with self._pictures.decoded(images, place) as decodes, self._blaming():
            prompt = self._tokenizer.prompt(shown)
        media = placed(request.images, prompt, token_ids, self._tokenizer.banned_ids)
        for text in between(media, token_ids):  # an image's own tokens may have no logit
            check_ids(text, self._limits, "token_ids")
        prompt = Prompt(token_ids, media, is_plain=True)
        return BuiltPrompt(prompt, shown, decodes, range(len(media)))

    def _plain(self, request: Request) -> tuple[int, ...]:
        """Return the tokens of a text that is no conversation."""
        if request.token_ids is not None:
            check_ids(request.token_ids, self._limits, "token_ids")
            return tuple(request.token_ids)
        prefix = self._pooling().prefix if request.task == "embed" else ""
        text = prefix + (request.text or "")
        with self._blaming():
            return tuple(self._tokenizer.encode(text, adds_special=request.adds_special))

    def _blaming(self) -> AbstractContextManager[None]:
        return attributing(self._component_names, "tokenizer", "this prompt")
