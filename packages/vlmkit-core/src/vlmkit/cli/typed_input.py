"""What somebody types or pastes at a terminal, message by message; or the lines of a pipe."""

import glob
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

import click

PASTE_S = 0.05  # what follows a line that soon was not typed


def messages(commands: Sequence[str] = ()) -> Iterator[str]:
    """Yield messages until there is no more input.

    Lines that are pasted at once are one message. At a terminal Ctrl-C gives up the line, Ctrl-D
    ends the input, and TAB completes paths.

    Args:
        commands: completed as well, at the beginning of a line.
    """
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    takes_pastes = _takes_pastes(commands)
    while True:
        try:
            first = input("> ")
            yield first if takes_pastes else "\n".join([first, *_pasted_lines()])
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\nCtrl-D or /quit leaves", err=True)


def _takes_pastes(commands: Sequence[str]) -> bool:
    """Give input() editing and history; tell whether it gives back all lines of a paste at once."""
    if sys.platform != "win32":
        with suppress(ImportError):
            import readline

            is_libedit = "libedit" in (readline.__doc__ or "")
            readline.set_completer_delims(" \t\n")
            readline.set_completer(
                lambda word, place: _completion(commands, word, place, readline.get_begidx())
            )
            readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
            if not is_libedit:
                readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off
                return sys.stdout.isatty()  # or input() does without
    return False


def _pasted_lines() -> Iterator[str]:
    """Yield the lines that came together with the one before."""
    with suppress(EOFError):
        while sys.platform != "win32" and select.select([sys.stdin], [], [], PASTE_S)[0]:
            yield input()


def _completion(commands: Sequence[str], word: str, place: int, begin: int) -> str | None:
    """Return how a word may go on, the first way at place 0; None where there is no other.

    Args:
        commands: how a line may begin.
        word: what was typed of it.
        place: which way is wanted.
        begin: where the word begins in the line.
    """
    found = [each + " " for each in commands if begin == 0 and word and each.startswith(word)]
    typed = os.path.expanduser(word)  # noqa: PTH111 - Path raises for a user who is not there
    for path in sorted(glob.glob(glob.escape(typed) + "*")):  # noqa: PTH207 - keeps what was typed
        shown = word + path[len(typed) :]
        found.append(shown + ("/" if os.path.isdir(path) else " "))  # noqa: PTH112
    return found[place] if place < len(found) else None
