"""From a body of the chat API to a request for a pipeline: messages, opened images, parameters."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vlmkit.errors import ImageError, PromptTooLong, RequestError
from vlmkit.image import Image
from vlmkit.message import ImagePart, Message, Part, Role, TextPart
from vlmkit.pipeline import Pipeline
from vlmkit.request import Request
from vlmkit.sampling import SamplingParams
from vlmkit.server import wire
from vlmkit.server.fetch import ImageFetcher, not_allowed
from vlmkit.server.settings import ServerSettings

_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "ignore_eos",
    "min_tokens",
    "logprobs",
    "top_logprobs",
    "n",
)
_ROLES: dict[type[wire.ChatMessage], Role] = {
    wire.SystemMessage: "system",
    wire.DeveloperMessage: "system",
    wire.UserMessage: "user",
    wire.AssistantMessage: "assistant",
    wire.ToolMessage: "tool",
}


@dataclass(slots=True)
class ImageBudget:
    """What is left for the images of one request, and how many of them are opened at once."""

    num_pixels_left: int
    places: asyncio.Semaphore

    def take(self, num_pixels: int = 0) -> None:
        """Count an image.

        Raises:
            ImageError: all images together have too many pixels.
        """
        self.num_pixels_left -= num_pixels
        if self.num_pixels_left < 0:
            raise ImageError(
                "the images have too many pixels together", param="messages", code="image_too_large"
            )


class Converter:
    """Turns bodies into requests.

    Args:
        settings: bounds of one request.
        fetcher: fetches images by URL; None where that is off.
    """

    def __init__(self, settings: ServerSettings, fetcher: ImageFetcher | None) -> None:
        self._settings = settings
        self._fetcher = fetcher

    async def request(
        self, chat: wire.ChatRequest, pipeline: Pipeline, request_id: str
    ) -> tuple[Request, float]:
        """Return a request, and how many seconds opening its images took.

        Raises:
            RequestError: names the field that is wrong.
        """
        self._check_size(chat, pipeline)
        params = sampling_params(chat, pipeline)
        started = time.perf_counter()
        images = iter(await self._images(chat, pipeline))
        messages = [_message(message, images) for message in chat.messages]
        request = Request(
            messages=messages, params=params, priority=chat.priority or 0, id=request_id
        )
        return request, time.perf_counter() - started

    def _check_size(self, chat: wire.ChatRequest, pipeline: Pipeline) -> None:
        """Refuse what would only cost time, before an image is opened or a text tokenized."""
        num_chars = num_images = 0
        for message in chat.messages:
            for part in _parts(message):
                if isinstance(part, wire.TextPart):
                    num_chars += len(part.text)
                else:
                    num_images += 1
        if num_chars > self._settings.max_text_chars:
            raise PromptTooLong(
                pipeline.limits.max_sequence_tokens,
                f"the text is over {self._settings.max_text_chars} characters",
            )
        if num_images and not pipeline.takes_images:
            raise RequestError("this model takes no images", param="messages")
        if num_images > pipeline.settings.max_images:
            raise RequestError(
                f"{num_images} images are over the limit of {pipeline.settings.max_images}",
                param="messages",
                code="too_many_images",
            )

    async def _images(self, chat: wire.ChatRequest, pipeline: Pipeline) -> list[Image]:
        """Open the images of all messages side by side; of several that fail, raise for the first.

        One of the pipeline's workers is left to other requests.
        """
        places = asyncio.Semaphore(max(1, pipeline.settings.num_workers - 1))
        budget = ImageBudget(self._settings.max_request_pixels, places)
        tasks = [
            asyncio.ensure_future(self._image_at(place, url, pipeline, budget))
            for place, url in _image_urls(chat)
        ]
        try:
            return [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _image_at(
        self, place: str, url: str, pipeline: Pipeline, budget: ImageBudget
    ) -> Image:
        async with budget.places:
            budget.take()  # raises where it is spent, before the image costs anything
            try:
                image = await self._image(url, pipeline)
            except ImageError as error:
                error.param = place
                raise
            budget.take(image.width * image.height)
            return image

    async def _image(self, url: str, pipeline: Pipeline) -> Image:
        """Open an image in a worker thread; nothing but URLs is taken, so no path of this disk."""
        source: str | bytes = url
        if not url.startswith("data:"):
            if self._fetcher is None:
                raise not_allowed()
            source = await self._fetcher.fetch(url)
        image: Image = await pipeline.in_worker(Image.open, source, pipeline.settings.images)
        return image


def sampling_params(chat: wire.ChatRequest, pipeline: Pipeline) -> SamplingParams:
    """Return a body's sampling parameters on top of the model's own defaults.

    Raises:
        RequestError: names the field that is wrong.
    """
    values: dict[str, Any] = {
        name: value for name in _SAME_NAME if (value := getattr(chat, name)) is not None
    }
    if chat.stop is not None:
        values["stop"] = (chat.stop,) if isinstance(chat.stop, str) else tuple(chat.stop)
    limits = {chat.max_tokens, chat.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise RequestError(
            "max_tokens and max_completion_tokens differ; send one of them",
            param="max_completion_tokens",
        )
    if limits:
        values["max_tokens"] = limits.pop()
    if chat.stream_options is not None and not chat.stream:
        raise RequestError("stream_options needs stream to be true", param="stream_options")
    return pipeline.params(**values)


def _image_urls(chat: wire.ChatRequest) -> Iterator[tuple[str, str]]:
    """Yield the place and the URL of every image, in order."""
    for number, message in enumerate(chat.messages):
        for index, part in enumerate(_parts(message)):
            if isinstance(part, wire.ImagePart):
                yield f"messages[{number}].content[{index}].image_url.url", part.image_url.url


def _message(message: wire.ChatMessage, images: Iterator[Image]) -> Message:
    """Return a message with the next images in their places."""
    parts: list[Part] = [
        TextPart(part.text) if isinstance(part, wire.TextPart) else ImagePart(next(images))
        for part in _parts(message)
    ]
    return Message(_ROLES[type(message)], tuple(parts))


def _parts(message: wire.ChatMessage) -> list[wire.TextPart] | list[wire.TextPart | wire.ImagePart]:
    content = message.content
    return [wire.TextPart(text=content)] if isinstance(content, str) else content
