"""Finds paths of images in a message, which a terminal inserts when files are dropped on it.

Opens no file.
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


def names_image(word: str) -> bool:
    """Return whether an argument is an image: an existing file, or a file name or pattern."""
    is_name = word.lower().endswith(SUFFIXES) and not set(word) & set(" \t\n")
    return is_name or os.path.isfile(word)  # noqa: PTH113 - never raises


def dropped(message: str) -> tuple[str, list[str]]:
    """Return a message without its images, and the paths of the images.

    An image is a word that is quoted or begins like a path, has the suffix of an image, and names
    an existing file. If the message has no other words, the file need not exist: opening it reports
    that.
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
    """Return the path of an image that is the whole message, possibly with blanks; else None."""
    text = message.strip()
    match = _WORD.fullmatch(text)
    paths = [text] if re.match(_PATH, text, re.IGNORECASE) else []
    paths += [_unquoted(match["word"])] if match else []
    images = (path for path in paths if path.lower().endswith(SUFFIXES))
    return next((path for path in images if os.path.isfile(path)), None)  # noqa: PTH113


def _unquoted(word: str) -> str:
    """Return the path that a shell word means."""
    if sys.platform == "win32":  # a backslash is a separator there
        path = word.strip("\"'")
    else:
        path = shlex.split(word)[0]
    with suppress(MediaError, ValueError):  # invalid paths are reported when they are opened
        if is_file_url(path):
            return path_of(path)
        return os.path.expanduser(path)  # noqa: PTH111 - Path raises for an unknown user
    return path


def _without(message: str, matches: "list[re.Match[str]]") -> str:
    for match in reversed(matches):
        message = message[: match.start()] + message[match.end() :]
    return message
