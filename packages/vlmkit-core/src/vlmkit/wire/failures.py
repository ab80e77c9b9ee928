"""Errors of :mod:`vlmkit.errors` as plain values, and back.

Errors of other libraries are not sent: their texts may quote what a client sent.
"""

from collections.abc import Mapping

import msgspec

from vlmkit import errors
from vlmkit.errors import (
    ConfigError,
    ConstraintError,
    MediaError,
    QueueFull,
    RequestError,
    VlmkitError,
    WireError,
)

ERRORS: Mapping[str, type[VlmkitError]] = {
    name: getattr(errors, name)
    for name in (
        *("VlmkitError", "ConfigError", "PluginError", "UnknownPlugin", "PluginUnavailable"),
        *("CheckpointError", "WireError", "RequestError", "PromptTooLong", "MediaError"),
        *("ImageError", "ConstraintError", "QueueFull", "RequestQuarantined", "EngineError"),
        *("EngineFailed", "WorkerLost", "OutOfMemory", "PromptNotMade", "RequestCancelled"),
    )
}
"""The classes of errors that are sent; one of another class is sent as its nearest base."""


class SentError(msgspec.Struct, tag="error", array_like=True, forbid_unknown_fields=True):
    """An error, with the fields of all its possible classes."""

    kind: str
    message: str
    hint: str
    param: str | None
    code: str | None
    distribution: str
    index: int | None
    keyword: str
    retry_after_s: int | None
    others: list[tuple[str, str]]


def pack_error(error: VlmkitError) -> SentError:
    """Return the plain values of an error."""
    kind = next(each for each in type(error).__mro__ if ERRORS.get(each.__name__) is each)
    return SentError(
        kind.__name__,
        str(error),
        error.hint,
        getattr(error, "param", None),
        error.code if isinstance(error, RequestError) else None,
        getattr(error, "distribution", ""),
        getattr(error, "index", None),
        getattr(error, "keyword", ""),
        getattr(error, "retry_after_s", None),
        [(str(each), each.hint) for each in getattr(error, "others", ())],
    )


def unpack_error(sent: SentError) -> VlmkitError:
    """Return the error of plain values.

    Raises:
        WireError: it has an unknown class.
    """
    kind = ERRORS.get(sent.kind)
    if kind is None:
        raise WireError("a message has an error of an unknown class")
    error = kind.__new__(kind)
    if isinstance(error, ConfigError):
        others = tuple(ConfigError(text, hint=hint) for text, hint in sent.others)
        ConfigError.__init__(error, sent.message, hint=sent.hint, others=others)
        return error
    VlmkitError.__init__(error, sent.message, hint=sent.hint)
    if isinstance(error, RequestError):
        error.param, error.code = sent.param, sent.code or error.code
        error.distribution = sent.distribution
    if isinstance(error, MediaError):
        error.index = sent.index
    if isinstance(error, ConstraintError):
        error.keyword = sent.keyword
    if isinstance(error, QueueFull):
        error.retry_after_s = sent.retry_after_s
    return error
