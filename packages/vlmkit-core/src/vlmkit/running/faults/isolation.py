"""Isolation of the members of a batch that make the whole batch fail.

The messages of libraries go to the log, and clients get errors of our own. This module does not
know what a batch consists of.
"""

import logging
from collections.abc import Callable, Sequence as Seq
from typing import TypeVar

from vlmkit.errors import EngineError, OutOfMemory, VlmkitError
from vlmkit.kit.traces import trace_of

log = logging.getLogger(__name__)

SEE_LOG = "see the server's log"

M = TypeVar("M")
R = TypeVar("R")


def isolated(run: Callable[[Seq[M]], list[R]], members: Seq[M]) -> list[R | Exception]:
    """Run a batch. If it raises, run each member alone.

    Returns:
        For each member its result, or the error that it raised alone.
    """
    try:
        return list(run(members))
    except Exception as error:  # noqa: BLE001 - a component may raise anything
        if len(members) == 1:
            return [error]
    return [result for member in members for result in isolated(run, [member])]


def engine_error(message: str, cause: Exception, *, may_quote_input: bool = False) -> VlmkitError:
    """Log the cause of a failure, and return an error without the cause's text.

    Args:
        message: the text of the returned error.
        cause: the error that was raised. One of vlmkit's is returned as it is.
        may_quote_input: whether the cause's text may quote a request. Then the log gets its
            traceback without that text.
    """
    if isinstance(cause, VlmkitError):
        return cause
    if may_quote_input:
        log.error("%s", f"{message}\n{trace_of(cause)}")
    else:
        log.error("%s", message, exc_info=cause)
    is_memory = isinstance(cause, MemoryError)
    error = OutOfMemory("this request") if is_memory else EngineError(message, hint=SEE_LOG)
    error.__cause__ = cause
    return error
