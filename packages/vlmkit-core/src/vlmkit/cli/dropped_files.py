"""Pictures in a message: paths that a terminal writes when files are dropped on it, or are quoted.

Tells which words of a message are pictures, and opens none.
"""

import os
import re
import shlex
import sys
from contextlib import suppress

from vlmkit.errors import MediaError
from vlmkit.types.media import is_file_url, path_of

SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif"),
    ".pdf",
)

_PATH = r"(?:~?/|\.\.?/|file:|[a-z]:[\\/])"
_WORD = re.compile(
    rf"""(?<!\S)(?=['"]|{_PATH})(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+)(?!\S)\ ?""",
    re.IGNORECASE,
)


def names_picture(word: str) -> bool:
    """Tell whether a word of a command line is a picture: a file, or a name or pattern of one."""
    is_name = word.lower().endswith(SUFFIXES) and not set(word) & set(" \t\n")
    return is_name or os.path.isfile(word)  # noqa: PTH113 - never raises


def dropped(message: str) -> tuple[str, list[str]]:
    """Return a message without its pictures, and the pictures' paths.

    A picture is a word that is quoted or begins as a path does, has a picture's suffix, and names a
    file that exists. Where the message says nothing else, the file need not exist: whoever opens it
    will say so.
    """
    if (whole := _whole(message)) is not None:
        return "", [whole]
    words = [
        (match, path)
        for match in _WORD.finditer(message)
        if (path := _unquoted(match["word"])).lower().endswith(SUFFIXES)
    ]
    if _without(message, [match for match, _ in words]).strip():
        words = [(match, path) for match, path in words if os.path.isfile(path)]  # noqa: PTH113 - never raises
    rest = _without(message, [match for match, _ in words]) if words else message
    return rest.strip(), [path for _, path in words]


def _whole(message: str) -> str | None:
    """Return the path of a picture that a message is, with blanks in it or without."""
    text = message.strip()
    match = _WORD.fullmatch(text)
    paths = [text] if re.match(_PATH, text, re.IGNORECASE) else []
    paths += [_unquoted(match["word"])] if match else []
    pictures = (path for path in paths if path.lower().endswith(SUFFIXES))
    return next((path for path in pictures if os.path.isfile(path)), None)  # noqa: PTH113


def _unquoted(word: str) -> str:
    """Return the path that a word of the shell means."""
    if sys.platform == "win32":  # a backslash is a separator there
        path = word.strip("\"'")
    else:
        path = shlex.split(word)[0]
    with suppress(MediaError, ValueError):  # another machine's, or no path: who opens it says so
        if is_file_url(path):
            return path_of(path)
        return os.path.expanduser(path)  # noqa: PTH111 - Path raises for a user who is not there
    return path


def _without(message: str, matches: "list[re.Match[str]]") -> str:
    for match in reversed(matches):
        message = message[: match.start()] + message[match.end() :]
    return message
