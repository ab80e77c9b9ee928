"""The key file: one JSON object a line, a key or a revocation. Lines are only appended.

So two processes that add keys at once lose none, a revoked key stays on record, and a server that
reads the file never finds half of it.
"""

import errno
import os
import sys
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path

import msgspec

from vlmkit.errors import ConfigError
from vlmkit_server.auth.key import Key, Name

MAX_BYTES = 16 * 2**20
MAX_ERRORS = 20
"""Invalid lines that are reported; a file of another kind has thousands."""


class Revoked(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="revoked"
):
    """The revocation of a key.

    Attributes:
        id: the key's id.
        at_s: when it was revoked, in seconds since 1970.
    """

    id: Name
    at_s: int


Line = Key | Revoked

_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def read_lines(path: Path) -> list[Line]:
    """Return all lines, in order.

    Raises:
        ConfigError: the file cannot be read, or a line is invalid.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"keys file {str(path)!r} cannot be read: {error.strerror}",
            hint=f"make a key by: vlmkit keys add NAME --file {path}"
            if isinstance(error, FileNotFoundError)
            else "it is a folder: name a file in it"
            if isinstance(error, IsADirectoryError)
            else "let the server's user read it",
        ) from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"keys file {str(path)!r} has over {MAX_BYTES} bytes")
    lines: list[Line] = []
    errors: list[ConfigError] = []
    for number, text in enumerate(content.splitlines(), 1):
        if text.strip() and len(errors) < MAX_ERRORS:
            try:
                lines.append(_line(path, number, text))
            except ConfigError as error:
                errors.append(error)
    if errors:
        raise ConfigError.together(errors)
    return lines


def add_line(path: Path, line: Line) -> None:
    """Append one line; a new file is readable by its owner alone.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        with open(path, "ab+", buffering=0, opener=partial(os.open, mode=0o600)) as file:
            _lock(file.fileno())
            file.seek(max(0, file.tell() - 1))
            separator = b"" if file.read() in (b"", b"\n") else b"\n"
            added = separator + msgspec.json.encode(line) + b"\n"
            size = file.seek(0, os.SEEK_END)
            if file.write(added) != len(added):  # appends, wherever the end is
                file.truncate(size)
                raise OSError(errno.ENOSPC, "there is no room for it")
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError(
            f"keys file {str(path)!r} cannot be written: {error.strerror}",
            hint="name a file in a folder that is there and that you may write to",
        ) from error


def _lock(descriptor: int) -> None:
    """Lock the file, so that truncating half a line cannot remove another process's line."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def valid_keys(lines: Seq[Line]) -> list[Key]:
    """Return the keys that are not revoked."""
    revoked = {line.id for line in lines if isinstance(line, Revoked)}
    return [line for line in lines if isinstance(line, Key) and line.id not in revoked]


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The line is not quoted: it may contain a secret by mistake.
        raise ConfigError(
            f"keys file {str(path)!r}, line {number}, is no key as vlmkit keys writes them",
            hint=f"take the line out; keys are made by: vlmkit keys add NAME --file {path}",
        ) from error
