"""Errors of models that cannot be loaded, for the operator and for clients."""

import logging
import time

from vlmkit.config.providers import described
from vlmkit.errors import ConfigError, EngineError, VlmkitError
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.http.errors import Unavailable, waiting_s

log = logging.getLogger(__name__)

RETRY_LOAD_S = 30  # requests cannot trigger loads of a broken model more often


class ModelTooLarge(ConfigError):  # noqa: N818 - reads as a sentence where it is raised
    """The model is larger than the memory budget."""


def too_large(name: str, num_bytes: int, budget_bytes: int) -> ModelTooLarge:
    """Return the error of a model that exceeds the memory budget by itself."""
    return ModelTooLarge(
        f"model {name!r} takes {num_bytes} bytes, more than "
        f"server.fleet.memory_budget_bytes = {budget_bytes}",
        hint="raise the budget, or correct memory_bytes of the model",
    )


def not_ready(model: ModelHandle, message: str) -> Unavailable:
    """Return the client's error for a model that is not loaded yet."""
    return Unavailable(message, code="model_loading", retry_after_s=waiting_s(model.ready_in_s))


def refusal(model: ModelHandle) -> Unavailable:
    """Return the client's error for a model that failed, or could not be loaded."""
    if model.is_recovering:
        return not_ready(model, "the model is being restarted")
    if model.is_dead:
        return Unavailable("the model has failed", code="model_failed")
    left_s = waiting_s(model.failed_s + RETRY_LOAD_S - time.monotonic())
    if isinstance(model.error, ModelTooLarge):
        return Unavailable(
            "the model is larger than this server's memory budget",
            code="model_too_large",
            retry_after_s=left_s,
        )
    return Unavailable("the model could not be loaded", code="model_failed", retry_after_s=left_s)


def as_exception(name: str, error: BaseException) -> Exception:
    """Return an error as an Exception: a panic in a thread must not look like an exit."""
    if isinstance(error, Exception):
        return error
    failure = EngineError(f"model {name!r} could not be loaded: {type(error).__name__}")
    failure.__cause__ = error
    return failure


def closing_error(error: BaseException) -> Exception:
    """Return the error of a server whose models could not all be closed."""
    return error if isinstance(error, Exception) else EngineError("a model could not be closed")


def log_failure(name: str, error: BaseException) -> None:
    """Log why a model is not served; unexpected errors get a traceback."""
    hint = getattr(error, "hint", "")
    text = f"{described(error)} ({hint})" if hint else described(error)
    trace = None if isinstance(error, VlmkitError) else error
    log.error("model %r could not be loaded: %s", name, text, exc_info=trace)
