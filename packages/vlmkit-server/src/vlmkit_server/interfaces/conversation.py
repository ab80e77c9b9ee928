"""A conversation as an API reads it from a body: independent of every API's names and shapes.

An API decodes a body once, to a :class:`Conversation`. The server opens its images and files, and
makes a :class:`vlmkit.Request` of it. Whatever the server or a runner rejects later is reported
under the name that the client sent: parts know their paths, and ``names`` has those of fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from vlmkit.errors import MediaError, RequestError
from vlmkit.types.constraint import Constraint
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.message import ReasoningPart, Role, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit.types.tool_choice import NamedTool, ToolChoice


@dataclass(slots=True)
class ImageSource:
    """An image of a body that is not opened yet; it has either a URL or a file id.

    Attributes:
        path: its path in the body, for errors.
        url: a ``data:`` URL, an http(s) URL, or for light prompts ``size:WIDTHxHEIGHT``.
        file_id: the id of an uploaded file.
        options: the size in which the model sees it.
    """

    path: str
    url: str | None = None
    file_id: str | None = None
    options: ImageOptions = PLAIN_IMAGE


@dataclass(slots=True)
class FileSource:
    """A file of a body that is not opened yet; it has data, a URL or a file id.

    Attributes:
        path: its path in the body, for errors.
        data: its content in base64, or a ``data:`` URL.
        url: an http(s) URL or a ``data:`` URL.
        file_id: the id of an uploaded file.
        pages: the selected pages, such as ``1-3,7``; None for all.
        pages_path: the path of the field that selects them.
        options: the size in which the model sees its images.
        max_tokens: maximum number of placeholder tokens of all its images together.
    """

    path: str
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    pages: str | None = None
    pages_path: str = ""
    options: ImageOptions = PLAIN_IMAGE
    max_tokens: int | None = None


@dataclass(slots=True)
class SentCall:
    """A tool call of an earlier answer.

    Attributes:
        call: the call; its arguments must be the JSON text of an object.
        path: the path of its arguments in the body.
    """

    call: ToolCallPart
    path: str


SentPart = TextPart | ReasoningPart | SentCall | ImageSource | FileSource


@dataclass(slots=True)
class SentMessage:
    """One message of a body.

    Attributes:
        role: the role of the speaker.
        parts: its content, in order.
        path: its path in the body; empty if errors about it name the whole conversation.
        call_id: the id of the call whose result it is; only for role ``tool``.
    """

    role: Role
    parts: list[SentPart]
    path: str = ""
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Extras:
    """What an answer reports besides its text, if the client requests it.

    Attributes:
        logprobs: the log-probability of each token.
        token_ids: the token ids of prompt and answer.
        image_transforms: how each image was resized, cropped and tiled.
        places: the boxes and points that the answer names in its one image.
    """

    logprobs: bool = False
    token_ids: bool = False
    image_transforms: bool = False
    places: bool = False


NO_EXTRAS = Extras()


class AnswerHead(msgspec.Struct, frozen=True):
    """The fields that every object of one answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A conversation and how to answer it.

    Attributes:
        messages: the messages, oldest first.
        model: the served name of the model; None if the client leaves it out.
        sampling: the sampling parameters that the client sets, by the names of
            :class:`vlmkit.SamplingParams`; the model's defaults fill the gaps.
        constraint: the constraint of the answer; None for none.
        tools: definitions of the tools that the answer may call, in OpenAI's form.
        num_tool_chars: the length of the definitions as they were sent; 0 without tools.
        strict_tools: names of tools whose schemas must be enforced in full.
        tool_choice: None for the default: ``auto`` with tools, and ``none`` without.
        parallel_tool_calls: whether the answer may call more than once.
        server_tools: names of tools that the server runs itself.
        add_generation_prompt: whether an answer begins after the last message; the default if None.
        continues_last_message: whether the answer continues the last message.
        template_values: values of the chat template's variables.
        reasoning_effort: amount of reasoning before the answer; None leaves it to the template.
        detail_field: the field that sets the detail of an image, if one is set; reported if the
            model ignores it.
        effort_field: the field that sets the reasoning effort.
        num_prompt_logprobs: the number of likeliest alternatives that are reported for each token
            of the prompt; None reports no log-probabilities of the prompt.
        extras: what the answer reports besides its text.
        cache_salt: separates requests of one tenant in all caches.
        priority: a larger value runs later.
        names: the client's names of fields, by the names in errors of runners, where they differ:
            for example ``{"max_tokens": "max_output_tokens", "messages": "input"}``.
    """

    messages: Sequence[SentMessage]
    model: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    constraint: Constraint | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    num_tool_chars: int = 0
    strict_tools: Sequence[str] = ()
    tool_choice: ToolChoice | NamedTool | None = None
    parallel_tool_calls: bool = True
    server_tools: Sequence[str] = ()
    add_generation_prompt: bool | None = None
    continues_last_message: bool = False
    template_values: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    detail_field: str = ""
    effort_field: str = "reasoning_effort"
    num_prompt_logprobs: int | None = None
    extras: Extras = NO_EXTRAS
    cache_salt: str = ""
    priority: int = 0
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def media(self) -> Iterator[ImageSource | FileSource]:
        """Every image and file, in order."""
        for message in self.messages:
            for part in message.parts:
                if isinstance(part, ImageSource | FileSource):
                    yield part

    @property
    def media_paths(self) -> list[str]:
        """The client's field of every image and file, in order."""
        return [medium.path for medium in self.media]

    def field_of(self, error: RequestError) -> str | None:
        """Return the client's name of the field that an error is about."""
        if isinstance(error, MediaError) and error.index is not None:
            return self.media_paths[error.index]
        param = error.param or ""
        if param.startswith("messages[") and param.endswith("]"):
            number = param[len("messages[") : -1]
            if number.isdecimal() and int(number) < len(self.messages):
                return self.messages[int(number)].path or self.names.get("messages", param)
        return self.names.get(param, error.param)
