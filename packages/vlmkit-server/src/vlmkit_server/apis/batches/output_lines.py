"""The lines of a batch's output and error files."""

import secrets
from typing import NamedTuple

import msgspec

from vlmkit_server.apis.batches.in_process_client import Answer

_SHOWN = "x-vlmkit-"
_ODD_ENDS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


class Used(NamedTuple):
    """The tokens of one answer, or of several."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0


class _Usage(msgspec.Struct):
    """The token usage in an answer, in any API's shape."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct, omit_defaults=True):
    status_code: int
    request_id: str
    body: msgspec.Raw
    headers: dict[str, str] = {}


class _Error(msgspec.Struct):
    code: str
    message: str


class _Entry(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


_BODY = msgspec.json.Decoder(_Body)


LINE_PREFIX = b'{"id":"batch_req_'
"""The first bytes of every line."""


def new_id() -> str:
    """Return a new id for a line's request."""
    return f"batch_req_{secrets.token_hex(12)}"


def answered(request_id: str, custom_id: str, answer: Answer) -> bytes:
    """Return the line for an answer, which may be an error."""
    headers = {name: value for name, value in answer.headers.items() if name.startswith(_SHOWN)}
    response = _Response(answer.status, request_id, msgspec.Raw(answer.body), headers)
    return _line(_Entry(request_id, custom_id, response, None))


def unanswered(custom_id: str, code: str, message: str) -> bytes:
    """Return the line for a request without an answer, with the reason."""
    return _line(_Entry(new_id(), custom_id, None, _Error(code, message)))


def usage_of(body: bytes) -> Used:
    """Return the tokens of an answer, as far as it reports them."""
    try:
        usage = _BODY.decode(body).usage or _Usage()
    except msgspec.DecodeError:
        return Used()
    details_in = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    details_out = usage.completion_tokens_details or usage.output_tokens_details or _Details()
    return Used(
        usage.prompt_tokens or usage.input_tokens,
        details_in.cached_tokens or 0,
        usage.completion_tokens or usage.output_tokens,
        details_out.reasoning_tokens or 0,
    )


def _line(entry: _Entry) -> bytes:
    """Encode an entry as one line for every reader, also those that split at other line breaks."""
    line = msgspec.json.encode(entry)
    for end, written in _ODD_ENDS:
        line = line.replace(end, written)
    return line + b"\n"
