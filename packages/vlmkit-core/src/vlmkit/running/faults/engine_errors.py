"""The errors of requests that a closing pipeline or a failed engine cannot serve."""

from vlmkit.errors import EngineError, EngineFailed


def closing_error() -> EngineError:
    """Return the error of requests that come too late."""
    return EngineError("the pipeline is closing", hint="ask another server")


def engine_failed(cause: BaseException, who: str = "the engine") -> EngineFailed:
    """Return the error of requests that an engine can serve no more; a fresh one for each.

    One that is raised again and again would collect every raiser's frames.
    """
    error = EngineFailed(f"{who} failed", hint="see the server's log")
    error.__cause__ = cause
    return error
