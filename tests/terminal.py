"""A terminal that records what a command writes: the lines that remain, and their widths."""

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Mapping, Sequence

_ESCAPE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


class Screen:
    """The lines of a terminal after some output, with unlimited height.

    Attributes:
        lines: the text on it.
        widest: the columns of the longest line so far.
    """

    def __init__(self) -> None:
        self.lines = [""]
        self.widest = 0
        self._row = self._column = 0

    def write(self, text: str) -> None:
        """Process output: text, line ends, and sequences that move the cursor or erase."""
        place = 0
        while place < len(text):
            if escape := _ESCAPE.match(text, place):
                self._obey(escape[1], escape[2])
                place = escape.end()
                continue
            self._put(text[place])
            place += 1

    def _put(self, sign: str) -> None:
        if sign == "\r":
            self._column = 0
        elif sign == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")
        else:
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + sign + line[self._column + 1 :]
            self._column += 1
            self.widest = max(self.widest, self._column)

    def _obey(self, number: str, what: str) -> None:
        line = self.lines[self._row]
        if what == "A":
            self._row = max(0, self._row - int(number or 1))
        elif what == "K":
            self.lines[self._row] = "" if number == "2" else line[: self._column]

    def shown(self) -> list[str]:
        """Return the lines that are not blank."""
        return [line.rstrip() for line in self.lines if line.strip()]


def run_on_terminal(
    command: Sequence[str], environ: Mapping[str, str], columns: int = 80
) -> tuple[int, str]:
    """Run a command on a terminal of its own; return its exit code and its whole output."""
    number, terminal = pty.fork()
    if number == 0:
        os.execvpe(command[0], list(command), dict(environ))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    written = b""
    while piece := _read(terminal):
        written += piece
    _, status = os.waitpid(number, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 2**16)
    except OSError:  # no writer is left
        return b""
