"""Records the terminals that the documentation shows: ``nox -s figures`` runs it.

It runs each command in a terminal of 100 columns and draws the final screen. It does not check the
output of the commands; tests of the documentation do.
"""

import io
import os
import platform
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/figures"
PICTURES = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures"
COLUMNS, LINES = 100, 40
COMMANDS = {
    "ask": ['vlmkit ask demo "What is in this picture?" --image shapes.png'],
    "doctor": ["vlmkit doctor demo"],
    "serve": ["vlmkit serve demo"],
}
ENDS = b"api_key="  # what a server prints last
DEVELOPMENT = re.compile(rb"\b(\d+\.\d+\.\d+)(?:\.post\d+)?\+\w+(?:\.dirty)?")
# Without the remote fonts of Rich's default format.
SVG = """<svg viewBox="0 0 {width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace }} \
{styles}</style>
<defs>{lines}</defs>
<rect fill="#0c0c0c" width="100%" height="100%" rx="8"/>
<g transform="translate({terminal_x}, 9)" class="{unique_id}-matrix">{backgrounds}{matrix}</g></svg>
"""


def main() -> None:
    """Record all figures, or the named ones."""
    for name in sys.argv[1:] or COMMANDS:
        console = Console(record=True, width=COLUMNS, file=io.StringIO())
        for command in COMMANDS[name]:
            console.print(Text(f"$ {command}", style="bold"))
            for line in _screen(command):
                console.print(Text(line), soft_wrap=True)
        console.print()
        svg = console.export_svg(title="", code_format=SVG, unique_id=name)
        (FOLDER / f"{name}.svg").write_text(svg)


def _neutral(written: bytes) -> bytes:
    """Return what a command wrote, without data of the recording machine and of its checkout."""
    for ours, shown in ((sys.executable, ".venv/bin/python"), (platform.release(), "6.1")):
        written = written.replace(ours.encode(), shown.encode())
    return DEVELOPMENT.sub(rb"\1", written)


def _screen(command: str) -> list[str]:
    """Run a command in a terminal and return the lines of the final screen."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(
        shlex.split(command), cwd=PICTURES, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    written = b""
    while data := _read(ours):
        written += data
        if ENDS in written:
            process.send_signal(signal.SIGINT)
            break
    process.wait()
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.ByteStream(screen).feed(_neutral(written))
    return [line.rstrip() for line in "\n".join(screen.display).rstrip().split("\n")]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the program has closed it
        return b""


if __name__ == "__main__":
    main()
