"""Checks that paths in settings can be used as their settings need.

Leaves nothing on the disk, and does not read files.
"""

import errno
import os
import stat
import tempfile
from pathlib import Path

from vlmkit.config.paths import NamedPath
from vlmkit.errors import ConfigError

_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # otherwise opening a pipe waits for its other end
_VERBS = {"read": "read", "append": "written", "folder": "used", "plugin": "read"}
_HINTS = {
    "read": "name a file that the server's user can read",
    "append": "name a file in a folder that the server's user can write to",
    "folder": "name a folder that the server's user can write to, or one in such a folder",
    "plugin": "name a Python file, or a folder with an __init__.py",
}


def access_error(named: NamedPath) -> ConfigError | None:
    """Return the error if this process cannot use a path as its setting needs; else None."""
    path = Path(named.path)
    try:
        match named.use:
            case "read":
                _check_readable(path)
            case "append":
                _check_writable(path)
            case "folder":
                _check_folder(path)
            case "plugin":
                os.stat(path)  # noqa: PTH116 - Path.exists does not return the reason
    except OSError as error:
        return ConfigError(
            f"{named.setting} {named.path!r} cannot be {_VERBS[named.use]}: {error.strerror}",
            hint=_HINTS[named.use],
        )
    return None


def _check_readable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | _NONBLOCK)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    finally:
        os.close(descriptor)


def _check_writable(path: Path) -> None:
    """Raise OSError unless a file can be appended to or created."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | _NONBLOCK))
    except FileNotFoundError:
        _check_creatable(path.parent)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a pipe without a reader yet
            raise


def _check_folder(path: Path) -> None:
    """Raise OSError unless files can be created in a folder, or the folder itself."""
    if path.exists():
        _check_creatable(path)
    else:
        _check_creatable(next(parent for parent in path.absolute().parents if parent.exists()))


def _check_creatable(folder: Path) -> None:
    """Raise OSError unless files can be created in an existing folder."""
    if not folder.exists():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(folder)!r}")
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{str(folder)!r} is no folder")
    is_effective = os.access in os.supports_effective_ids
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=is_effective):
        raise PermissionError(errno.EACCES, f"no permission to create files in {str(folder)!r}")
    try:  # root passes all permission checks, but /proc still refuses files
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        text = f"no file can be created in {str(folder)!r}: {error.strerror}"
        raise OSError(error.errno, text) from error
