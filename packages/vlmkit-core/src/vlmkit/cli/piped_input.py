"""Text that comes by a pipe or a redirection, as a question or a part of one."""

import os
import stat
import sys
import threading

import click

SILENCE_S = 2.0


def piped_text() -> str:
    """Return the text on standard input, without the line break at its end; empty if none is there.

    A terminal is not read, nor is the null device. A pipe is read to its end: after a while of
    silence, standard error says that this is what the command waits for.

    Raises:
        click.UsageError: it is no text, but a picture perhaps.
    """
    if not _is_piped():
        return ""
    waiting = threading.Timer(SILENCE_S, _say_waiting)
    waiting.daemon = True
    waiting.start()
    try:
        content = sys.stdin.buffer.read()
    finally:
        waiting.cancel()
    try:
        return content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.UsageError(
            "standard input is not UTF-8 text; a picture is read by --image -"
        ) from None


def _is_piped() -> bool:
    if sys.stdin is None:  # it was closed, and its number may be another file's by now
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _say_waiting() -> None:
    click.echo("reading standard input to its end; </dev/null gives none", err=True)
