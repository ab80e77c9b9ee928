"""How a model writes its answers, and calls of tools in them: data, and no behaviour.

From the same data comes what reads an answer and the grammar that holds one to it: see
:mod:`vlmkit.kit.tool_call_parser`, :mod:`vlmkit.kit.harmony_parser` and
:mod:`vlmkit.formats.tool_call_grammar`.
White space at the ends of a text here is how a call is usually written; a reader minds none.
"""

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any, NamedTuple


class Mark(NamedTuple):
    """What begins or ends reasoning, or calls.

    Attributes:
        text: how it is written.
        token_id: the token that it is; its spelling by other tokens is then no mark.
    """

    text: str
    token_id: int | None = None


NO_MARK = Mark("")


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call is a JSON object.

    Attributes:
        name: the key of the tool's name.
        arguments: the key of its arguments.
    """

    name: str = "name"
    arguments: str = "arguments"


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A call is a tool's name, and its arguments as a JSON object.

    Attributes:
        between: stands between them.
    """

    between: str


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """A call is a tool's name, and each argument between tags: strings as they are, else JSON.

    Attributes:
        before_name: stands before the tool's name.
        after_name: stands behind it.
        before_key: stands before an argument's name.
        after_key: stands behind it.
        before_value: stands before its value.
        after_value: stands behind the value.
        end: stands behind the last one.
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
    """How calls are written: ``open before call after close``, once more for each.

    Attributes:
        call: one call.
        open: begins a call. Without a text, an answer that begins with a call calls.
        close: ends it; without a text, its own end does.
        before: stands between ``open`` and the call.
        after: stands between the call and ``close``.
        between: stands between two calls.
        is_list: whether calls are items of one JSON list between ``open`` and ``close``.
        inner: other tokens that stand in calls, each with its text.
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
    """An answer is messages, each with a head that says what it is: ``start head body text end``.

    A head is ``role channel NAME``. That of a call names the tool behind ``recipient``, before the
    channel or behind it, and may say of what kind its text is, behind ``kind``. A call is a message
    whose text is its arguments. The head of the first message is begun by the prompt, which ends
    with ``start role`` or goes on to the text.

    Marks are tokens, or else no marks: they are not looked for by their spelling.

    Attributes:
        start: begins a message.
        channel: stands before the channel's name.
        kind: stands before the kind of a text.
        body: stands between the head and the text.
        end: ends a message.
        last: ends the last one of an answer.
        call: ends one that calls, and the answer with it.
        role: who speaks.
        reasoning: the channel of what is thought.
        said: the channel of the answer itself.
        calls: the channel of calls, and of what is said before the last message.
        recipient: stands before who is called.
        namespace: stands before a tool's name.
        json: what the kind of arguments is called.
        opens: the channel of the first message, if the prompt wrote its whole head.
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
    """What an answer may call, and how.

    Attributes:
        format: how calls are written.
        tools: their definitions, in OpenAI's form.
    """

    format: CallFormat | ChannelFormat
    tools: Seq[Mapping[str, Any]]
