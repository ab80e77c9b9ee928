"""Recognises pointer files of Git LFS, which a clone without LFS holds instead of the content."""

from pathlib import Path

FETCH = "`git lfs pull` in the folder fetches the content"
MAX_BYTES = 1024  # of a pointer, as its specification says

_BEGINNING = b"version https://git-lfs.github.com/spec/"


def is_pointer(path: Path) -> bool:
    """Return whether a file is a pointer of Git LFS.

    Raises:
        OSError: the file cannot be read.
    """
    if path.stat().st_size >= MAX_BYTES:
        return False
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING
