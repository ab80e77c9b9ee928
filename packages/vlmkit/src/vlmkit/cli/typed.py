"""What somebody types or pastes at a terminal, message by message; or the lines of a pipe."""

import select
import sys
from collections.abc import Iterator
from contextlib import suppress

import click

PASTE_S = 0.05  # what follows a line that soon was not typed


def messages() -> Iterator[str]:
    """Yield messages until there is no more input.

    Lines that are pasted at once are one message. At a terminal Ctrl-C gives up the line, and
    Ctrl-D ends the input.
    """
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    takes_pastes = _takes_pastes()
    while True:
        try:
            first = input("> ")
            yield first if takes_pastes else "\n".join([first, *_pasted_lines()])
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\nCtrl-D or /quit leaves", err=True)


def _takes_pastes() -> bool:
    """Give input() editing and history; tell whether it gives back all lines of a paste at once."""
    if sys.platform != "win32":
        with suppress(ImportError):
            import readline

            if "libedit" not in (readline.__doc__ or ""):
                readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off
                return sys.stdout.isatty()  # or input() does without
    return False


def _pasted_lines() -> Iterator[str]:
    """Yield the lines that came together with the one before."""
    with suppress(EOFError):
        while sys.platform != "win32" and select.select([sys.stdin], [], [], PASTE_S)[0]:
            yield input()
