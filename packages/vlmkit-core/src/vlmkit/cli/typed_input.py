"""Reads messages that are typed or pasted at a terminal, or the lines of a pipe."""

import glob
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

import click

PASTE_S = 0.05  # a line that follows within this time was pasted


def messages(commands: Sequence[str] = ()) -> Iterator[str]:
    """Yield messages until the input ends.

    Lines that are pasted together are one message. At a terminal, Ctrl-C discards the line, Ctrl-D
    ends the input, and TAB completes paths.

    Args:
        commands: words to complete at the beginning of a line.
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
            click.echo("\nCtrl-D or /quit ends the chat", err=True)


def _takes_pastes(commands: Sequence[str]) -> bool:
    """Enable editing and history of input(); return whether it returns a paste as one message."""
    if sys.platform != "win32":
        with suppress(ImportError):
            import readline

            is_libedit = "libedit" in (readline.__doc__ or "")
            readline.set_completer_delims(" \t\n")
            readline.set_completer(
                lambda word, index: _completion(commands, word, index, readline.get_begidx())
            )
            readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
            if not is_libedit:
                readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off
                return sys.stdout.isatty()  # otherwise input() does not use readline
    return False


def _pasted_lines() -> Iterator[str]:
    """Yield the lines that were pasted together with the previous one."""
    with suppress(EOFError):
        while sys.platform != "win32" and select.select([sys.stdin], [], [], PASTE_S)[0]:
            yield input()


def _completion(commands: Sequence[str], word: str, index: int, begin: int) -> str | None:
    """Return one completion of a word; None if there are no more.

    Args:
        commands: words to complete at the beginning of a line.
        word: the typed part of the word.
        index: the index of the completion, from 0.
        begin: the position of the word in the line.
    """
    found = [each + " " for each in commands if begin == 0 and word and each.startswith(word)]
    typed = os.path.expanduser(word)  # noqa: PTH111 - Path raises for an unknown user
    for path in sorted(glob.glob(glob.escape(typed) + "*")):  # noqa: PTH207 - keeps the typed text
        shown = word + path[len(typed) :]
        found.append(shown + ("/" if os.path.isdir(path) else " "))  # noqa: PTH112
    return found[index] if index < len(found) else None
