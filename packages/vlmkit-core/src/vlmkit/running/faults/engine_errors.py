"""Errors of requests that a closing pipeline or a failed engine cannot serve."""

from vlmkit.errors import EngineError, EngineFailed


def closing_error() -> EngineError:
    """Return the error of a request that arrives while the pipeline closes."""
    return EngineError("the pipeline is closing", hint="ask another server")


def engine_failed(cause: BaseException, component_name: str = "the engine") -> EngineFailed:
    """Return a new error for a request that a failed engine cannot serve.

    Each request needs its own: an error that is raised again collects the frames of every raise.
    """
    error = EngineFailed(f"{component_name} failed", hint="see the server's log")
    error.__cause__ = cause
    return error
