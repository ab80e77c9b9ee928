"""Converts a body of the chat API to a request for a runner.

Opens and checks images and files. Does not write the prompt.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec

from vlmkit.errors import MediaError, PromptTooLong, RequestError
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message, Part, ReasoningPart, Role, TextPart
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.apis.files.memory_store import FileStore
from vlmkit_server.apis.files.storage import FilesInMemory, FileStorage
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.apis.openai_chat.content_parts import (
    files_in,
    images_in,
    media_parts,
    parts_of,
    path_of,
)
from vlmkit_server.apis.openai_chat.files import Files
from vlmkit_server.apis.openai_chat.image_options import image_options, options_of
from vlmkit_server.apis.openai_chat.images import Images, check_num_images
from vlmkit_server.apis.openai_chat.prompt_options import (
    continues_last_message,
    prompt_options,
    template_kinds,
)
from vlmkit_server.exchange.offload import OffloadExecutor
from vlmkit_server.http.caller import ANONYMOUS, Caller
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.wire.answer_forms import requested_form
from vlmkit_server.wire.sampling import sampling_values
from vlmkit_server.wire.structure import check_structure
from vlmkit_server.wire.tool_fields import check_tool_types, tool_values

_ROLES: dict[type[wire.ChatMessage], Role] = {
    wire.SystemMessage: "system",
    wire.DeveloperMessage: "system",
    wire.UserMessage: "user",
    wire.AssistantMessage: "assistant",
    wire.ToolMessage: "tool",
}


class Converter:
    """Converts bodies to requests.

    Args:
        settings: the limits of one request.
        fetcher: fetches images and files by URL; None if fetching is off.
        files: the uploaded files; None means an empty store.
        offload: decodes large images and files; None creates one.

    Attributes:
        images: opens the images of bodies.
    """

    def __init__(
        self,
        settings: ServerSettings,
        fetcher: ImageFetcher | None,
        files: FileStorage | None = None,
        offload: OffloadExecutor | None = None,
    ) -> None:
        self._settings = settings
        offload = offload or OffloadExecutor()
        self.images = Images(settings, fetcher, offload)
        storage = files or FilesInMemory(FileStore(settings.files))
        self._files = Files(storage, fetcher, settings.max_body_bytes, offload)
        self._template_kinds = template_kinds(settings.chat_template_kwargs)

    async def request(
        self,
        chat: wire.ChatRequest,
        facts: RunnerFacts,
        request_id: str,
        caller: Caller = ANONYMOUS,
        *,
        added: Mapping[str, Any] = MappingProxyType({}),
        light: bool = False,
    ) -> tuple[Request, float]:
        """Return a request, and how long fetching and checking its images took, in seconds.

        Args:
            chat: the body.
            facts: describes the model and its limits.
            request_id: the id of the request, which logs show.
            caller: the caller, whose uploaded files the body may name.
            added: the values of fields that plugins added.
            light: whether to read only the sizes of images.

        Raises:
            RequestError: a field is wrong; the error names it.
        """
        params, form = sampling_params(chat, facts), requested_form(chat)
        started = time.perf_counter()
        self._check_tools(chat, facts)
        default_options = image_options(chat)
        messages = await self.messages(
            chat.messages, facts, caller, default_options, allows_continuation=True, light=light
        )
        request = Request(
            messages=messages,
            params=params,
            clamp_max_tokens=self._settings.clamps_max_tokens,
            fields=added,
            constraint=form.constraint if form else None,
            options=replace(prompt_options(chat, self._template_kinds, facts.options), light=light),
            tenant=caller.tenant,
            account=caller.account,
            trace=caller.trace,
            cache_salt=chat.cache_salt or "",
            places=bool(chat.return_places),
            **tool_values(chat),
            priority=(chat.priority or 0) + caller.priority,
            id=request_id,
        )
        return request, time.perf_counter() - started

    def _check_tools(self, chat: wire.ChatRequest, facts: RunnerFacts) -> None:
        """Refuse unsupported types of tools, and definitions over the limit of a text."""
        check_tool_types(chat)
        if len(msgspec.json.encode(chat.tools)) > self._settings.max_text_chars:
            raise PromptTooLong(
                facts.limits.max_sequence_tokens,
                f"the tools are over {self._settings.max_text_chars} characters",
                param="tools",
            )

    async def messages(
        self,
        messages: Sequence[wire.ChatMessage],
        facts: RunnerFacts,
        caller: Caller = ANONYMOUS,
        default_options: ImageOptions = PLAIN_IMAGE,
        *,
        allows_continuation: bool = False,
        light: bool = False,
    ) -> list[Message]:
        """Convert messages, and open their images and files.

        Args:
            messages: the messages of the body.
            facts: describes the model and its limits.
            caller: the caller, whose uploaded files the messages may name.
            default_options: the options of images that set none themselves.
            allows_continuation: whether the answer may continue the last message.
            light: whether to read only the sizes of images.

        Raises:
            RequestError: a field is wrong; the error names it.
        """
        if continues_last_message(messages) and not allows_continuation:
            path = f"messages[{len(messages) - 1}]"
            raise RequestError(f"{path} cannot go on: nothing is answered here", param=path)
        self._check_size(messages, facts)
        sources = [
            await self._source(path, image, caller.owner) for path, image in images_in(messages)
        ]
        files = list(files_in(messages))
        if files and light:
            raise RequestError(
                "a file cannot be rendered lightly: its pages' sizes are not read",
                param=files[0].path,
                code="unsupported_parameter",
            )
        images = iter(await self.images.open_parts(sources, facts, caller.account, light=light))
        opened_files = iter(await self._files.open_files(files, facts, caller, default_options))
        return [
            _message(n, message, images, opened_files, default_options)
            for n, message in enumerate(messages)
        ]

    async def _source(
        self, path: str, image: wire.ImageUrl, owner: bytes
    ) -> tuple[str, str | bytes]:
        """Return the path of an image, and its URL or the content of its file."""
        if (image.url is None) == (image.file_id is None):
            image_path = path.removesuffix(".url").removesuffix(".file_id")
            raise RequestError(
                f"{image_path} needs either url or file_id",
                param=image_path,
                hint="send a data: URL, or the file_id of an image that /v1/files keeps; a uuid "
                "names none",
            )
        if image.file_id is not None:
            return path, await self._files.content(image.file_id, owner, path)
        return path, image.url or ""

    def _check_size(self, messages: Sequence[wire.ChatMessage], facts: RunnerFacts) -> None:
        """Refuse oversized conversations before an image is opened or a text is tokenized."""
        num_chars = num_images = 0
        for message in messages:
            num_chars += _num_extra_chars(message)
            for part in parts_of(message):
                if isinstance(part, wire.TextPart):
                    num_chars += len(part.text)
                elif isinstance(part, wire.ImagePart):
                    num_images += 1
        if num_chars > self._settings.max_text_chars:
            raise PromptTooLong(
                facts.limits.max_sequence_tokens,
                f"the text is over {self._settings.max_text_chars} characters",
            )
        check_num_images(num_images, facts, "messages")
        _check_arguments(messages)


def sampling_params(chat: wire.ChatRequest, facts: RunnerFacts) -> SamplingParams:
    """Return the sampling parameters of a body; the model's defaults fill the gaps.

    Raises:
        RequestError: a field is wrong; the error names it.
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
    return facts.defaults.replaced(values)


def field_of(error: RequestError, messages: Sequence[wire.ChatMessage]) -> str | None:
    """Return the field of a body that a runner's error about its messages concerns."""
    if isinstance(error, MediaError) and error.index is not None:
        return [path_of(path, part) for path, part in media_parts(messages)][error.index]
    return error.param


def field_of_chat(error: RequestError, body: wire.ChatRequest) -> str | None:
    """Return the field of a chat body that an error concerns."""
    field = field_of(error, body.messages)
    if field == "max_tokens" and body.max_tokens is None:
        return "max_completion_tokens"
    if field == "constraint" and (form := requested_form(body)):
        return form.field
    if field == "constraint" and body.shown_functions:
        return "tools"
    return field


def _message(
    number: int,
    message: wire.ChatMessage,
    images: Iterator[ImagePart | FilePart],
    files: Iterator[FilePart],
    default_options: ImageOptions,
) -> Message:
    """Convert a message; takes its images and files from the iterators, in order."""
    parts: list[Part] = []
    for part in parts_of(message):
        if isinstance(part, wire.TextPart):
            parts.append(TextPart(part.text))
        elif isinstance(part, wire.FilePart):
            parts.append(next(files))
        else:
            parts.append(replace(next(images), options=options_of(part.image, default_options)))
    if isinstance(message, wire.AssistantMessage):
        reasoning = [ReasoningPart(message.reasoning_text)] if message.reasoning_text else []
        parts = [*reasoning, *parts, *_calls(number, message)]
    parts = parts or [TextPart("")]
    call_id = message.tool_call_id if isinstance(message, wire.ToolMessage) else None
    return Message(_ROLES[type(message)], tuple(parts), call_id)


def _calls(number: int, message: wire.AssistantMessage) -> Iterator[ToolCallPart]:
    """Yield the calls of an earlier answer; their arguments must be valid for chat templates."""
    for index, call in enumerate(message.tool_calls or ()):
        try:
            part = ToolCallPart(call.id, call.function.name, call.function.arguments_json)
            part.parsed()
        except RequestError as error:
            error.param = f"messages[{number}].tool_calls[{index}].function.arguments"
            raise
        yield part


def _check_arguments(messages: Sequence[wire.ChatMessage]) -> None:
    """Refuse arguments of calls that take long to decode; the body holds them as plain text.

    After an argument that is not JSON the count may be wrong, but then nothing is decoded.
    """
    calls = (
        call.function.arguments_json
        for message in messages
        if isinstance(message, wire.AssistantMessage)
        for call in message.tool_calls or ()
    )
    check_structure(",".join(calls).encode(), "the arguments of tools' calls have", "messages")


def _num_extra_chars(message: wire.ChatMessage) -> int:
    """Return the number of characters that a message has besides its content."""
    if isinstance(message, wire.ToolMessage):
        return len(message.tool_call_id)
    if not isinstance(message, wire.AssistantMessage):
        return 0
    num_call_chars = sum(
        len(call.id) + len(call.function.name) + len(call.function.arguments_json)
        for call in message.tool_calls or ()
    )
    return num_call_chars + len(message.reasoning_text)
