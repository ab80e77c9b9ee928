"""The log of a worker or an encoder, on standard error."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from vlmkit.kit.traces import TraceFormatter


@contextmanager
def shown_log(*, is_debugging: bool) -> Iterator[None]:
    """Write the log to standard error while the process runs, without texts of clients."""
    with ExitStack() as after:
        for handler in logging.getLogger().handlers:
            after.callback(handler.setFormatter, handler.formatter)
            handler.setFormatter(TraceFormatter(tells_all=is_debugging))
        for name in ("vlmkit", "vlmkit_grpc"):
            logger = logging.getLogger(name)
            after.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.DEBUG if is_debugging else logging.INFO)
        yield
