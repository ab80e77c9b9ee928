"""Reserves standard output for a command; other prints go to standard error.

Plugins may print while they are imported, and libraries while a model is loaded, from Python, C or
other threads. Such prints must not mix with output that another program reads.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def reserved_stdout(*, for_good: bool = False) -> Iterator[TextIO | None]:
    """Yield the only stream that writes to standard output; other prints go to standard error.

    Args:
        for_good: do not restore standard output, because the process is about to end, and C code
            may print even then.
    """
    output = sys.stdout
    if output is sys.stderr or output is None:  # reserved already, or there is none
        yield output
        return
    number = _number(output)
    moved = None if number is None else _moved(output, number)
    sys.stdout = sys.stderr
    try:
        yield moved or output
    finally:
        sys.stdout = output
        if moved is not None and number is not None:
            output.flush()
            moved.flush()
            if not for_good:
                os.dup2(moved.fileno(), number)
                moved.close()


def _moved(output: TextIO, number: int) -> TextIO:
    """Redirect a descriptor to standard error; return a stream to its previous target."""
    output.flush()
    target = os.dup(number)
    errors = _number(sys.stderr)
    if errors is None:
        errors = os.open(os.devnull, os.O_WRONLY)
        os.dup2(errors, number)
        os.close(errors)
    else:
        os.dup2(errors, number)
    return open(target, "w", encoding=output.encoding, errors=output.errors)  # noqa: PTH123


def _number(stream: TextIO | None) -> int | None:
    """Return the descriptor of a pipe or file; None for terminals and streams without one."""
    try:
        number = None if stream is None else stream.fileno()
        return None if number is None or stream is None or stream.isatty() else number
    except (OSError, ValueError, AttributeError, io.UnsupportedOperation):
        return None
