"""Makes the request for a runner of a conversation: opens its images and files, and checks limits.

It does not write the prompt.
"""

import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from vlmkit.errors import PromptTooLong, RequestError
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.interfaces.tokenizer import Option
from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message, Part, ReasoningPart, TextPart
from vlmkit.types.prompt_options import PromptOptions, ReasoningEffort, TemplateValue
from vlmkit.types.request import Request
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.admission.image_budget import ImageBudget
from vlmkit_server.conversation.media import Media
from vlmkit_server.exchange.offload import OffloadExecutor
from vlmkit_server.http.caller import ANONYMOUS, Caller
from vlmkit_server.interfaces.conversation import (
    Conversation,
    FileSource,
    ImageSource,
    SentCall,
    SentMessage,
)
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.storage.file_storage import FilesInMemory, FileStorage
from vlmkit_server.storage.memory_store import FileStore
from vlmkit_server.wire.structure import check_structure

DETAIL: Option = "image_detail"
EFFORT: Option = "reasoning_effort"
_EFFORTS: Mapping[str, ReasoningEffort] = {"minimal": "low", "xhigh": "high", "max": "high"}

TemplateKind = type[bool] | type[int] | tuple[str, ...]

MAX_INT = 2**31
_KINDS: Mapping[str, TemplateKind] = {"bool": bool, "int": int}


class RequestBuilder:
    """Makes requests.

    Args:
        settings: the limits of one request.
        fetcher: fetches images and files by URL; None if fetching is off.
        files: the uploaded files; None means an empty store.
        offload: decodes large images and files; None creates one.

    Attributes:
        media: opens images and files.
    """

    def __init__(
        self,
        settings: ServerSettings,
        fetcher: ImageFetcher | None,
        files: FileStorage | None = None,
        offload: OffloadExecutor | None = None,
    ) -> None:
        self._settings = settings
        self._clamps_max_tokens = settings.clamps_max_tokens
        storage = files or FilesInMemory(FileStore(settings.files))
        self.media = Media(settings, fetcher, storage, offload or OffloadExecutor())
        self._template_kinds = _template_kinds(settings.chat_template_kwargs)

    async def request(
        self,
        conversation: Conversation,
        facts: RunnerFacts,
        request_id: str,
        caller: Caller = ANONYMOUS,
        *,
        added: Mapping[str, Any] = MappingProxyType({}),
        light: bool = False,
    ) -> tuple[Request, float]:
        """Return a request, and how long fetching and checking its images took, in seconds.

        Args:
            conversation: the conversation.
            facts: describes the model and its limits.
            request_id: the id of the request, which logs show.
            caller: the caller, whose uploaded files the conversation may name.
            added: the values of fields that plugins added.
            light: whether to read only the sizes of images.

        Raises:
            RequestError: a field is wrong; the error names it as a runner would.
        """
        params = facts.defaults.replaced(dict(conversation.sampling))
        started = time.perf_counter()
        self._check_tools(conversation, facts)
        messages = await self.messages(conversation.messages, facts, caller, light=light)
        tools, choice = conversation.tools, conversation.tool_choice
        request = Request(
            messages=messages,
            params=params,
            clamp_max_tokens=self._clamps_max_tokens,
            fields=added,
            constraint=conversation.constraint,
            options=_prompt_options(conversation, self._template_kinds, facts.options, light=light),
            tenant=caller.tenant,
            account=caller.account,
            trace=caller.trace,
            cache_salt=conversation.cache_salt,
            places=conversation.extras.places,
            tools=tools,
            strict_tools=conversation.strict_tools,
            tool_choice=choice or ("auto" if tools else "none"),
            parallel_tool_calls=conversation.parallel_tool_calls or not tools,
            priority=conversation.priority + caller.priority,
            id=request_id,
        )
        return request, time.perf_counter() - started

    async def messages(
        self,
        messages: Sequence[SentMessage],
        facts: RunnerFacts,
        caller: Caller = ANONYMOUS,
        *,
        light: bool = False,
        budget: ImageBudget | None = None,
    ) -> list[Message]:
        """Return messages with their images and files opened.

        Args:
            messages: the messages of a body.
            facts: describes the model and its limits.
            caller: the caller, whose uploaded files the messages may name.
            light: whether to read only the sizes of images.
            budget: the pixels that remain for a body of several prompts; None for one prompt.

        Raises:
            RequestError: a field is wrong; the error names it.
        """
        self._check_size(messages, facts)
        parts = [part for message in messages for part in message.parts]
        images = [part for part in parts if isinstance(part, ImageSource)]
        files = [part for part in parts if isinstance(part, FileSource)]
        if files and light:
            raise RequestError(
                "a file cannot be rendered lightly: its pages' sizes are not read",
                param=files[0].path,
                code="unsupported_parameter",
            )
        opened_images: Sequence[ImagePart | FilePart] = ()
        opened_files: Sequence[FilePart] = ()
        if images:
            opened_images = await self.media.open_images(
                images, facts, caller, light=light, budget=budget
            )
        if files:
            opened_files = await self.media.open_files(files, facts, caller)
        opened = iter(opened_images), iter(opened_files)
        return [_message(message, *opened) for message in messages]

    def _check_tools(self, conversation: Conversation, facts: RunnerFacts) -> None:
        """Refuse definitions of tools over the limit of a text."""
        if conversation.num_tool_chars > self._settings.max_text_chars:
            raise PromptTooLong(
                facts.limits.max_sequence_tokens,
                f"the tools are over {self._settings.max_text_chars} characters",
                param="tools",
            )

    def _check_size(self, messages: Sequence[SentMessage], facts: RunnerFacts) -> None:
        """Refuse oversized conversations before an image is opened or a text is tokenized."""
        num_chars = num_images = 0
        arguments: list[str] = []
        for message in messages:
            num_chars += len(message.call_id or "")
            for part in message.parts:
                if isinstance(part, TextPart | ReasoningPart):
                    num_chars += len(part.text)
                elif isinstance(part, SentCall):
                    call = part.call
                    num_chars += len(call.id) + len(call.name) + len(call.arguments)
                    arguments.append(call.arguments)
                elif isinstance(part, ImageSource):
                    num_images += 1
        if num_chars > self._settings.max_text_chars:
            raise PromptTooLong(
                facts.limits.max_sequence_tokens,
                f"the text is over {self._settings.max_text_chars} characters",
            )
        check_num_images(num_images, facts, "messages")
        if arguments:
            # After one that is not JSON the count may be wrong, but then nothing is decoded.
            content = ",".join(arguments).encode()
            check_structure(content, "the arguments of tools' calls have", "messages")


def check_num_images(num: int, facts: RunnerFacts, param: str) -> None:
    """Refuse more images than a request may have.

    Raises:
        RequestError: the model supports no images, or fewer.
    """
    if num and not facts.takes_images:
        raise RequestError("this model takes no images", param=param)
    if num > facts.bounds.max_images:
        raise RequestError(
            f"{num} images are over the limit of {facts.bounds.max_images}",
            param=param,
            code="too_many_images",
        )


def _message(
    sent: SentMessage, images: Iterator[ImagePart | FilePart], files: Iterator[FilePart]
) -> Message:
    """Return a message; takes its images and files from the iterators, in order."""
    parts: list[Part] = []
    for part in sent.parts:
        if isinstance(part, ImageSource):
            parts.append(next(images))
        elif isinstance(part, FileSource):
            parts.append(next(files))
        else:
            parts.append(_checked(part) if isinstance(part, SentCall) else part)
    return Message(sent.role, tuple(parts) or (TextPart(""),), sent.call_id)


def _checked(sent: SentCall) -> ToolCallPart:
    """Return a call; its arguments must be valid for chat templates."""
    try:
        sent.call.parsed()
    except RequestError as error:
        error.param = sent.path
        raise
    return sent.call


def _template_kinds(variables: Iterable[str]) -> dict[str, TemplateKind]:
    """Return the allowed types or values of a template's variables, from their settings."""
    pairs = (variable.split(":", 1) for variable in variables)
    return {name: _KINDS.get(kind) or tuple(kind.split("|")) for name, kind in pairs}


def _prompt_options(
    conversation: Conversation,
    allowed: Mapping[str, TemplateKind],
    supported: Container[str],
    *,
    light: bool,
) -> PromptOptions:
    """Return the options for writing a conversation.

    Args:
        conversation: the conversation.
        allowed: the chat template variables that clients may set, with their types or values.
        supported: options of the model; without ``reasoning_effort``, an effort has no effect.
        light: whether the prompt is built from the sizes of images alone.

    Raises:
        RequestError: a field is wrong; the error names it.
    """
    continues, begins = conversation.continues_last_message, conversation.add_generation_prompt
    if continues and begins:
        raise RequestError(
            "add_generation_prompt and a last message that goes on exclude each other",
            param="add_generation_prompt",
        )
    effort = conversation.reasoning_effort if EFFORT in supported else None
    return PromptOptions(
        add_generation_prompt=begins is not False,
        continue_final_message=continues,
        chat_template_kwargs=_values(conversation.template_values, allowed),
        reasoning_effort=None if effort is None else _nearest(effort),
        light=light,
    )


def _nearest(effort: str) -> ReasoningEffort:
    """Return the nearest effort that chat templates support."""
    return _EFFORTS.get(effort) or cast("ReasoningEffort", effort)


def _values(
    given: Mapping[str, Any], allowed: Mapping[str, TemplateKind]
) -> dict[str, TemplateValue]:
    values = {name: value for name, value in given.items() if value is not None}
    for name, value in values.items():
        if name not in allowed:
            raise RequestError(
                "chat_template_kwargs has a key that is not allowed here",
                param="chat_template_kwargs",
                code="unsupported_parameter",
                hint=f"allowed are {', '.join(sorted(allowed)) or 'none'}",
            )
        if not _matches(allowed[name], value):
            kind = allowed[name]
            expected = f"one of {', '.join(kind)}" if isinstance(kind, tuple) else kind.__name__
            path = f"chat_template_kwargs.{name}"
            raise RequestError(f"{path} must be {expected}", param=path)
    return values


def _matches(kind: TemplateKind, value: object) -> bool:
    """Return whether a value is allowed; strings only from a list, as templates insert them."""
    if isinstance(kind, tuple):
        return isinstance(value, str) and value in kind
    return type(value) is kind and -MAX_INT <= value < MAX_INT
