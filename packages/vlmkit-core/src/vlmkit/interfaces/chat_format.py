"""The formats of a model's answers and of the tool calls in them: data without behaviour.

Parsers and grammars are built from the same data: see :mod:`vlmkit.kit.tool_call_parser`,
:mod:`vlmkit.kit.harmony_parser` and :mod:`vlmkit.formats.tool_call_grammar`.
White space at the ends of a text here shows how models usually write it; a parser accepts any.
"""

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any, NamedTuple


class Mark(NamedTuple):
    """A delimiter that begins or ends reasoning or tool calls.

    Attributes:
        text: its spelling.
        token_id: the token that it is. The same spelling by other tokens is then no delimiter.
            None if only the spelling counts.
    """

    text: str
    token_id: int | None = None


NO_MARK = Mark("")


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call format: a JSON object.

    Attributes:
        name: the key that holds the tool's name.
        arguments: the key that holds the arguments.
    """

    name: str = "name"
    arguments: str = "arguments"


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A call format: a tool's name, then its arguments as a JSON object.

    Attributes:
        between: separates the name from the arguments.
    """

    between: str


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """A call format: a tool's name, then each argument between tags.

    Strings are written verbatim, other values as JSON.

    Attributes:
        before_name: precedes the tool's name.
        after_name: follows the tool's name.
        before_key: precedes an argument's name.
        after_key: follows an argument's name.
        before_value: precedes an argument's value.
        after_value: follows an argument's value.
        end: follows the last argument.
    """

    before_name: str
    after_name: str
    before_key: str
    after_key: str
    before_value: str
    after_value: str
    end: str = ""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The format of tool calls: ``open before call after close``, repeated for each call.

    Attributes:
        call: the format of one call.
        open: begins a call. If its text is empty, only a call at the start of an answer counts.
        close: ends a call. If its text is empty, the call's own end does.
        before: written between ``open`` and the call.
        after: written between the call and ``close``.
        between: written between two calls.
        is_list: whether calls are items of one JSON list between ``open`` and ``close``.
        inner: other special tokens that occur inside calls, each with its text.
    """

    call: JsonCall | NamedCall | TaggedCall
    open: Mark
    close: Mark = NO_MARK
    before: str = ""
    after: str = ""
    between: str = ""
    is_list: bool = False
    inner: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFormat:
    """The format of an answer that consists of messages, each ``start header body text end``.

    A header is ``role channel NAME``. The header of a call also names the tool after
    ``recipient``, before or after the channel. It may state the content type after ``kind``. A call
    is a message whose text is the arguments. The prompt begins the header of the first message: it
    ends with ``start role``, or includes the whole header.

    Delimiters count as tokens only: parsers do not search for their spelling.

    Attributes:
        start: begins a message.
        channel: precedes the channel's name.
        kind: precedes the content type of a message.
        body: separates the header from the text.
        end: ends a message.
        last: ends the last message of an answer.
        call: ends a message that is a call, and the answer with it.
        role: the role of the speaker.
        reasoning: the channel of reasoning.
        said: the channel of the answer itself.
        calls: the channel of calls, and of text before the last message.
        recipient: precedes the recipient of a call.
        namespace: precedes a tool's name.
        json: the name of the content type of arguments.
        opens: the channel of the first message, if the prompt contains its whole header.
    """

    start: Mark
    channel: Mark
    kind: Mark
    body: Mark
    end: Mark
    last: Mark
    call: Mark
    role: str
    reasoning: str
    said: str
    calls: str
    recipient: str
    namespace: str
    json: str
    opens: str = ""


@dataclass(frozen=True, slots=True)
class Calling:
    """The tools that an answer may call, and the format of the calls.

    Attributes:
        format: the format of the calls.
        tools: the definitions of the tools, in OpenAI's form.
    """

    format: CallFormat | ChannelFormat
    tools: Seq[Mapping[str, Any]]
