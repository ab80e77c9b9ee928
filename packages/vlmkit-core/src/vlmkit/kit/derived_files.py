"""Folders of small files that are derived from a model in a single file.

A source that reads single files writes what other components expect in a folder, such as
``config.json``, into the user's cache. Nothing is written beside the user's file.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vlmkit.errors import CheckpointError
from vlmkit.kit import user_cache

FOLDER = "derived"


def derived_folder(file: Path, contents: Mapping[str, bytes]) -> Path:
    """Return a folder with some files that were derived from another file.

    It is made once for each file and content: a file with another size or time has another folder.

    Args:
        file: the file with the whole model.
        contents: the content of each file of the folder, by its name.

    Raises:
        CheckpointError: the file is not there any more, or the cache folder cannot be written.
    """
    try:
        facts = file.stat()
    except OSError as error:
        raise CheckpointError(
            f"the file of model {file.name!r} cannot be read: {error.strerror}",
            hint="do not move it while the model is loaded",
        ) from error
    whole = hashlib.sha256(os.fsencode(file.resolve()))
    whole.update(f"\0{facts.st_size}\0{facts.st_mtime_ns}".encode())
    for name, content in sorted(contents.items()):
        whole.update(f"\0{name}\0{len(content)}\0".encode() + content)
    target = user_cache.folder() / FOLDER / whole.hexdigest()
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
        try:
            for name, content in contents.items():
                (made / name).write_bytes(content)
            with suppress(OSError):  # another process was faster
                made.rename(target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(
            f"the files of model {file.name!r} cannot be written to {str(target.parent)!r}: "
            f"{error.strerror}",
            hint="make the cache folder writable",
        ) from error
    return target
