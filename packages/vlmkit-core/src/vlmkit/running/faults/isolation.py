"""Finding the members of a batch that make it fail, so that nobody else suffers from them.

What a library says goes to the log; an answer gets an error of our own. Knows nothing of what a
batch is made of.
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
    """Run a batch; if it raises, run its members alone to find out which of them fail."""
    try:
        return list(run(members))
    except Exception as error:  # noqa: BLE001 - a component may raise anything
        if len(members) == 1:
            return [error]
    return [result for member in members for result in isolated(run, [member])]


def engine_error(message: str, cause: Exception, *, repeats: bool = False) -> VlmkitError:
    """Keep the library's words out of the answer and in the log.

    Args:
        message: what the answer says.
        cause: what was raised.
        repeats: whether its words may repeat what was sent, and are kept out of the log as well.
    """
    if isinstance(cause, VlmkitError):
        return cause
    if repeats:
        log.error("%s", f"{message}\n{trace_of(cause)}")
    else:
        log.error("%s", message, exc_info=cause)
    is_memory = isinstance(cause, MemoryError)
    error = OutOfMemory("this request") if is_memory else EngineError(message, hint=SEE_LOG)
    error.__cause__ = cause
    return error
