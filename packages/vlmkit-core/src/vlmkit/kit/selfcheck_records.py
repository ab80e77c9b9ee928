"""Records of passed self-checks, so that a model is not checked again at each start.

A record is a small file in the user's cache folder. Its name is a digest of all that the result
depends on: sizes and times of the model's files, installed packages, the machine, its processor,
and the check's own additions. A record that is absent or unreadable costs the time
of a check and nothing else.
"""

import hashlib
import logging
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from vlmkit.kit import content, user_cache

log = logging.getLogger(__name__)

MAX_BYTES = 2**12
PROCESSOR = Path("/proc/cpuinfo")


def place(folder: Path, kind: str, facts: Sequence[str]) -> Path | None:
    """Return where the note of a trial is, or would be; None where there can be none.

    Args:
        folder: that has the model's files; one whose files changed just now has no note.
        kind: of trial, the name of a folder.
        facts: what else the outcome depends on.
    """
    try:
        changes = content.changes(folder)
        if changes is None:
            return None
        every = [changes, str(folder.resolve()), *facts, sys.version, platform.platform()]
        every += [platform.node(), _processor(), *sorted(packages())]
        name = hashlib.sha256("\n".join(every).encode(errors="backslashreplace")).hexdigest()
        return user_cache.folder() / kind / name
    except (OSError, RuntimeError) as error:
        log.info("it is not known whether the model in %s was tried: %s", folder, error)
        return None


def read(note: Path | None) -> str | None:
    """Return what a note says; None where there is none."""
    if note is None:
        return None
    try:
        with note.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return None


def write(note: Path | None, text: str = "") -> None:
    """Write a note as a whole, where one can be."""
    if note is None:
        return
    try:
        content.replace(note, text.encode())
    except OSError as error:
        log.info("it is not remembered that a model was tried: %s", error)


def packages() -> set[str]:
    """Return names and versions of what is installed, as folders are called: no file is read."""
    places = filter(Path.is_dir, map(Path, sys.path))
    return {found.name for place in places for found in place.glob("*.dist-info")}


def _processor() -> str:
    """Return what the system says of one processor: its model, and what it can compute."""
    try:
        with PROCESSOR.open(encoding="utf-8", errors="replace") as file:
            first = file.read(2**14).split("\n\n")[0]
    except OSError:
        return platform.processor()
    return "\n".join(line for line in first.splitlines() if "MHz" not in line)
