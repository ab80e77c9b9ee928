"""Records of passed self-checks, so that a model is not checked at each start.

A record is a small file in the user's cache folder. Its name is a digest of all that the outcome
depends on. That includes the attributes of the model's files, which are not read, the installed
packages, the machine, its processor, and facts of the check. A record that cannot be found, read or
written only costs the time of another check.
"""

import hashlib
import logging
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmkit.deprecated import renamed
from vlmkit.kit import content, user_cache

log = logging.getLogger(__name__)

MAX_BYTES = 2**12
PROCESSOR = Path("/proc/cpuinfo")


def record_path(folder: Path, kind: str, facts: Sequence[str]) -> Path | None:
    """Return the path of a self-check's record, which need not exist; None if it cannot exist.

    Args:
        folder: the folder of the model; if its files changed just now, there is no record.
        kind: the kind of check, which is the name of a subfolder.
        facts: further facts that the outcome depends on.
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
        log.info("cannot find the self-check record of the model in %s: %s", folder, error)
        return None


def read(note: Path | None) -> str | None:
    """Return the text of a record; None if it does not exist."""
    if note is None:
        return None
    try:
        with note.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return None


def write(note: Path | None, text: str = "") -> None:
    """Write a record atomically; does nothing for a path of None."""
    if note is None:
        return
    try:
        content.replace(note, text.encode())
    except OSError as error:
        log.info("cannot write a self-check record: %s", error)


def packages() -> set[str]:
    """Return the names of the folders of installed distributions, with versions; reads no file."""
    folders = filter(Path.is_dir, map(Path, sys.path))
    return {found.name for folder in folders for found in folder.glob("*.dist-info")}


def _processor() -> str:
    """Return the system's description of one processor, without its clock rate."""
    try:
        with PROCESSOR.open(encoding="utf-8", errors="replace") as file:
            first = file.read(2**14).split("\n\n")[0]
    except OSError:
        return platform.processor()
    return "\n".join(line for line in first.splitlines() if "MHz" not in line)


def __getattr__(name: str) -> Any:
    return renamed(__name__, name)
