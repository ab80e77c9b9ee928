"""Reads a body of the chat API as a conversation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vlmkit.errors import RequestError
from vlmkit.types.base64_text import is_data_url
from vlmkit.types.image_options import PLAIN_IMAGE, Detail, ImageOptions
from vlmkit.types.message import ReasoningPart, Role, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.interfaces.conversation import (
    Conversation,
    Extras,
    FileSource,
    ImageSource,
    SentCall,
    SentMessage,
    SentPart,
)
from vlmkit_server.wire.answer_forms import requested_form
from vlmkit_server.wire.sampling import sampling_values
from vlmkit_server.wire.tool_fields import check_tool_types, tool_values

DETAIL_FIELD = "messages.content.image_url.detail"

_ROLES: dict[type[wire.ChatMessage], Role] = {
    wire.SystemMessage: "system",
    wire.DeveloperMessage: "system",
    wire.UserMessage: "user",
    wire.AssistantMessage: "assistant",
    wire.ToolMessage: "tool",
}
_DETAILS: dict[str | None, Detail] = {"low": "low", "high": "high", "original": "high"}
"""All values except ``auto``; no image is shown larger than the model supports."""


class ImageSizeFields(Protocol):
    """A body with fields for the size of images."""

    @property
    def max_image_tokens(self) -> int | None:
        """The largest number of tokens per image."""
        ...

    @property
    def mm_processor_kwargs(self) -> dict[str, Any] | None:
        """Limits by the parameter names of the model's image processor."""
        ...


def conversation_of(chat: wire.ChatRequest) -> Conversation:
    """Return the conversation of a body.

    Raises:
        RequestError: a field is wrong; the error names it.
    """
    sampling, form = _sampling(chat), requested_form(chat)
    check_tool_types(chat)
    names = {} if chat.max_tokens is not None else {"max_tokens": "max_completion_tokens"}
    if form or chat.shown_functions:
        names["constraint"] = form.field if form else "tools"
    tools = tool_values(chat)
    messages = SentMessages(chat)
    messages.add(chat.messages)
    is_marked = continues_last_message(chat.messages)
    return Conversation(
        messages=messages.sent,
        model=chat.model,
        sampling=sampling,
        constraint=form.constraint if form else None,
        server_tools=chat.server_tools or (),
        add_generation_prompt=chat.add_generation_prompt,
        continues_last_message=bool(chat.continue_final_message) or is_marked,
        template_values=chat.chat_template_kwargs or {},
        reasoning_effort=chat.reasoning_effort,
        detail_field=DETAIL_FIELD if messages.has_detail else "",
        num_prompt_logprobs=chat.prompt_logprobs,
        extras=Extras(
            logprobs=bool(chat.logprobs),
            token_ids=bool(chat.return_token_ids),
            image_transforms=bool(chat.return_image_transforms),
            places=bool(chat.return_places),
        ),
        cache_salt=chat.cache_salt or "",
        priority=chat.priority or 0,
        names=names,
        **tools,
    )


@dataclass(slots=True)
class SentMessages:
    """Collects the messages of a body.

    Args:
        body: the body, whose fields set the size of images.

    Attributes:
        sent: the messages.
        has_detail: whether an image or a file sets its detail.
    """

    sent: list[SentMessage]
    has_detail: bool
    _common: ImageOptions

    def __init__(self, body: ImageSizeFields) -> None:
        self.sent = []
        self.has_detail = False
        self._common = image_options(body)

    def add(self, messages: Iterable[wire.ChatMessage]) -> None:
        """Add messages of the chat API.

        Raises:
            RequestError: the arguments of a call are nested too deeply.
        """
        for number, message in enumerate(messages):
            path = f"messages[{number}]"
            parts = self._parts(path, message)
            if isinstance(message, wire.AssistantMessage):
                if text := message.reasoning_text:
                    parts.insert(0, ReasoningPart(text))
                parts += _calls(path, message)
            call_id = message.tool_call_id if isinstance(message, wire.ToolMessage) else None
            self.sent.append(SentMessage(_ROLES[type(message)], parts, path, call_id))

    def options(self, image: wire.ImageUrl | wire.NamedFile) -> ImageOptions:
        """Return the options of an image, or of the file that it is in."""
        if image.detail not in (None, "", "auto"):
            self.has_detail = True
        if image.detail is None and image.max_image_tokens is None:
            return self._common
        return ImageOptions(
            detail=_DETAILS.get(image.detail, "auto"),
            max_tokens=image.max_image_tokens or self._common.max_tokens,
            processor=self._common.processor,
        )

    def image(self, path: str, image: wire.ImageUrl) -> ImageSource:
        """Return an image; errors about it name ``path``."""
        return ImageSource(path, image.url, image.file_id, self.options(image))

    def file(self, path: str, file: wire.NamedFile, pages_path: str) -> FileSource:
        """Return a file; errors about it name ``path``, and about its pages ``pages_path``."""
        return FileSource(
            path,
            file.file_data,
            file.file_url,
            file.file_id,
            file.pages,
            pages_path,
            self.options(file),
            file.max_file_tokens,
        )

    def _parts(self, path: str, message: wire.ChatMessage) -> list[SentPart]:
        """Return the parts of a message: a plain text is one part, and listed images come first."""
        parts: list[SentPart] = []
        if isinstance(message, wire.UserMessage):
            for index, text in enumerate(message.images or ()):
                url = text if is_data_url(text) else f"data:;base64,{text}"
                parts.append(ImageSource(f"{path}.images[{index}]", url, options=self._common))
        if isinstance(message.content, str):
            parts.append(TextPart(message.content))
            return parts
        for index, part in enumerate(message.content or ()):
            parts.append(self._part(f"{path}.content[{index}]", part))
        return parts

    def _part(self, path: str, part: wire.ShownPart) -> SentPart:
        if isinstance(part, wire.TextPart):
            return TextPart(part.text)
        if isinstance(part, wire.FilePart):
            return self.file(f"{path}.file", part.file, f"{path}.file.pages")
        if isinstance(part.image_url, str):
            return self.image(f"{path}.image_url", part.image)
        name = "url" if part.image.file_id is None else "file_id"
        return self.image(f"{path}.image_url.{name}", part.image)


def image_options(body: ImageSizeFields) -> ImageOptions:
    """Return the options of a body for images that set none themselves."""
    if body.max_image_tokens is None and not body.mm_processor_kwargs:
        return PLAIN_IMAGE
    return ImageOptions(max_tokens=body.max_image_tokens, processor=body.mm_processor_kwargs or {})


def continues_last_message(messages: Sequence[wire.ChatMessage]) -> bool:
    """Return whether the last message is marked as one that the answer continues.

    Raises:
        RequestError: an earlier message is marked.
    """
    *earlier, last = (
        isinstance(message, wire.AssistantMessage) and bool(message.prefix or message.partial)
        for message in messages
    )
    if any(earlier):
        number = earlier.index(True)
        raise RequestError(
            "only the last message can go on with the answer", param=f"messages[{number}]"
        )
    return last


def _sampling(chat: wire.ChatRequest) -> dict[str, Any]:
    """Return the sampling parameters of a body.

    Raises:
        RequestError: two fields limit the answer differently.
    """
    values = sampling_values(chat)
    values |= {"logprobs": bool(chat.logprobs), "top_logprobs": chat.top_logprobs or 0}
    limits = {chat.max_tokens, chat.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise RequestError(
            "max_tokens and max_completion_tokens differ; send one of them",
            param="max_completion_tokens",
        )
    if limits:
        values["max_tokens"] = limits.pop()
    return values


def _calls(path: str, message: wire.AssistantMessage) -> list[SentPart]:
    """Return the calls of an earlier answer."""
    return [
        SentCall(
            ToolCallPart(call.id, call.function.name, call.function.arguments_json),
            f"{path}.tool_calls[{index}].function.arguments",
        )
        for index, call in enumerate(message.tool_calls or ())
    ]
