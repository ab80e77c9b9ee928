"""Standard output for the command alone: what else is printed goes to standard error.

A plugin may print while it is imported, a library while a model is loaded, be it by Python, from C
or in a thread of its own. None of that may stand in what another program reads.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def apart(*, for_good: bool = False) -> Iterator[TextIO | None]:
    """Yield what writes to standard output; everybody else writes to standard error meanwhile.

    Args:
        for_good: nobody gets it back: the process is about to end, and C may print even then.
    """
    output = sys.stdout
    if output is sys.stderr or output is None:  # apart already, or there is none
        yield output
        return
    number = _number(output)
    own = None if number is None else _moved(output, number)
    sys.stdout = sys.stderr
    try:
        yield own or output
    finally:
        sys.stdout = output
        if own is not None and number is not None:
            output.flush()
            own.flush()
            if not for_good:
                os.dup2(own.fileno(), number)
                own.close()


def _moved(output: TextIO, number: int) -> TextIO:
    """Let a descriptor lead to standard error, and return what writes where it led before."""
    output.flush()
    kept = os.dup(number)
    errors = _number(sys.stderr)
    if errors is None:
        errors = os.open(os.devnull, os.O_WRONLY)
        os.dup2(errors, number)
        os.close(errors)
    else:
        os.dup2(errors, number)
    return open(kept, "w", encoding=output.encoding, errors=output.errors)  # noqa: PTH123


def _number(stream: TextIO | None) -> int | None:
    """Return the descriptor of a pipe or a file; None for a terminal, and for what has none."""
    try:
        number = None if stream is None else stream.fileno()
        return None if number is None or stream is None or stream.isatty() else number
    except (OSError, ValueError, AttributeError, io.UnsupportedOperation):
        return None
