"""Conversations of Python programs: texts, messages, or dictionaries as in OpenAI's API.

Not for requests over HTTP: the server decodes those by its own schemas.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlmkit.errors import RequestError
from vlmkit.inputs.images import WEB
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message, Part, ReasoningPart, TextPart
from vlmkit.types.tool_call import ToolCallPart

MakePart = Callable[[Any, ImageOptions], ImagePart | FilePart]
"""Returns the part for the source of an image; see :func:`vlmkit.inputs.images.shown_part`."""

HINT = 'for example [{"role": "user", "content": "Hello"}], or [Message.of("user", "Hello")]'
ROLES = {"developer": "system"}


def conversation(prompt: Any, make_part: MakePart) -> list[Message]:
    """Return the messages of a conversation.

    Args:
        prompt: a Message, a dictionary, or a sequence of these.
        make_part: opens images.

    Raises:
        RequestError: the prompt has another form; ``param`` is the path of the error.
    """
    turns = [prompt] if isinstance(prompt, Message | Mapping) else prompt
    if not isinstance(turns, Sequence) or isinstance(turns, str | bytes | bytearray):
        raise RequestError(
            f"a prompt must be a text or a list of messages, and was {type(prompt).__name__}",
            param="messages",
            hint=HINT,
        )
    return [_message(turn, f"messages[{place}]", make_part) for place, turn in enumerate(turns)]


def _message(turn: Any, place: str, make_part: MakePart) -> Message:
    if isinstance(turn, Message):
        return turn
    if not isinstance(turn, Mapping):
        raise _wrong(f"{place} must be a Message or a dictionary", place, turn)
    role, content = turn.get("role"), turn.get("content")
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, Sequence | None):
        raise _wrong(
            f"{place}.content must be a text or a list of parts", f"{place}.content", content
        )
    parts: list[Part] = []
    if thought := turn.get("reasoning_content"):
        parts.append(ReasoningPart(_text(thought, f"{place}.reasoning_content")))
    parts += [
        _part(part, f"{place}.content[{number}]", make_part)
        for number, part in enumerate(content or ())
    ]
    parts += [
        _call(call, f"{place}.tool_calls[{number}]")
        for number, call in enumerate(turn.get("tool_calls") or ())
    ]
    if not parts:
        raise RequestError(f"{place} has no content", param=f"{place}.content", hint=HINT)
    try:
        return Message(ROLES.get(str(role), role), tuple(parts), turn.get("tool_call_id"))  # type: ignore[arg-type]
    except RequestError as error:
        error.param = place
        raise


def _part(part: Any, place: str, make_part: MakePart) -> Part:
    if isinstance(part, str):
        return TextPart(part)
    if isinstance(part, TextPart | ImagePart | FilePart):
        return part
    if not isinstance(part, Mapping):
        return make_part(part, PLAIN_IMAGE)
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return TextPart(_text(part.get("text"), f"{place}.text"))
    if kind in ("image_url", "input_image"):
        return _image_url(part.get("image_url"), f"{place}.image_url", make_part)
    if kind == "image":
        source = next((part[name] for name in ("image", "url", "path") if name in part), None)
        if source is None:
            raise RequestError(f"{place} needs image, url or path", param=place)
        return make_part(source, PLAIN_IMAGE)
    raise RequestError(
        f"{place}.type must be text, image_url or image, and was {kind!r}", param=f"{place}.type"
    )


def _image_url(image: Any, place: str, make_part: MakePart) -> ImagePart | FilePart:
    """Return an image by its URL, never by a path: programs may pass on untrusted dictionaries."""
    url, detail = image, None
    if isinstance(image, Mapping):
        url, detail = image.get("url"), image.get("detail")
    if not isinstance(url, str) or not url.lower().startswith(("data:", *WEB)):
        raise RequestError(
            f"{place} must be a data: or http(s) URL",
            param=place,
            hint='a path goes into {"type": "image", "path": "a.png"}',
        )
    return make_part(url, ImageOptions(detail=detail or "auto"))


def _call(call: Any, place: str) -> ToolCallPart:
    if isinstance(call, ToolCallPart):
        return call
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _wrong(f"{place} must have a function", place, call)
    return ToolCallPart(
        _text(call.get("id", ""), f"{place}.id"),
        _text(function.get("name"), f"{place}.function.name"),
        _text(function.get("arguments", "{}"), f"{place}.function.arguments"),
    )


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise _wrong(f"{place} must be a text", place, value)
    return value


def _wrong(problem: str, place: str, value: Any) -> RequestError:
    return RequestError(f"{problem}, and was {type(value).__name__}", param=place)
