"""Files that are kept for later: bounded in number and bytes, forgotten by least recent use.

They live as long as the process, in its memory, and are found only with the credentials that they
were sent with. Is called in the event loop's thread.
"""

import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from vlmkit.errors import RequestError
from vlmkit.server.http.errors import NotStored
from vlmkit.settings.server import FilesSettings


class StoredFile(NamedTuple):
    """A file, and what was said of it.

    Attributes:
        id: what it is called; whoever knows it and has the credentials may read the file, so it
            cannot be guessed.
        number: how many were stored before.
        owner: whose it is.
        filename: a label.
        purpose: a label of OpenAI's.
        media_type: what its sender says it is; nothing here believes it.
        content: what it holds.
        created_at: seconds since 1970.
        expires_at: when it is forgotten, whoever uses it; None leaves that to others' files.
    """

    id: str
    number: int
    owner: bytes
    filename: str
    purpose: str
    media_type: str
    content: bytes
    created_at: int
    expires_at: int | None

    @property
    def num_bytes(self) -> int:
        """How much it holds."""
        return len(self.content)


class FileStore:
    """Keeps files.

    Args:
        settings: bounds.
        now: tells the time in seconds since 1970.
    """

    def __init__(self, settings: FilesSettings, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self._num_bytes = 0
        self._numbers = itertools.count()

    def check(self) -> None:
        """Refuse a file of which nothing is known yet, where none are kept.

        Raises:
            RequestError: that is so.
        """
        if not self._settings.max_stored:
            raise RequestError(
                "this server keeps no files",
                code="files_not_kept",
                hint="send files with the request",
            )

    def add(
        self,
        owner: bytes,
        content: bytes,
        *,
        filename: str,
        purpose: str,
        media_type: str,
        lives_s: int | None,
    ) -> StoredFile:
        """Keep a file, and forget others where there is no room for it.

        Args:
            owner: whose it is.
            content: what it holds.
            filename: a label.
            purpose: another.
            media_type: what it is said to be.
            lives_s: time after which it is forgotten.

        Raises:
            RequestError: it would not fit if it were the only one.
        """
        self.check()
        most = self._settings.max_stored_bytes
        if len(content) > most:
            raise RequestError(f"file is over {most} bytes", param="file", code="file_too_large")
        self._forget_expired()
        created_at = int(self._now())
        expires_at = None if lives_s is None else created_at + lives_s
        file = StoredFile(
            f"file-{secrets.token_hex(24)}",
            next(self._numbers),
            owner,
            filename,
            purpose,
            media_type,
            content,
            created_at,
            expires_at,
        )
        self._files[file.id] = file
        self._num_bytes += len(content)
        while len(self._files) > self._settings.max_stored or self._num_bytes > most:
            self._forget(next(iter(self._files)))
        return file

    def find(self, file_id: str, owner: bytes) -> StoredFile:
        """Return a file, which counts as a use of it.

        Raises:
            NotStored: there is none, or not of this owner.
        """
        self._forget_expired()
        file = self._files.get(file_id)
        if file is None or file.owner != owner:
            raise not_stored()
        self._files.move_to_end(file_id)
        return file

    def all_of(self, owner: bytes) -> list[StoredFile]:
        """Return an owner's files, the oldest first; that is no use of them."""
        self._forget_expired()
        own = (file for file in self._files.values() if file.owner == owner)
        return sorted(own, key=lambda file: file.number)

    def delete(self, file_id: str, owner: bytes) -> None:
        """Forget a file.

        Raises:
            NotStored: there is none, or not of this owner.
        """
        self._forget(self.find(file_id, owner).id)

    def _forget_expired(self) -> None:
        now = self._now()
        late = [
            f.id for f in self._files.values() if f.expires_at is not None and f.expires_at <= now
        ]
        for file_id in late:
            self._forget(file_id)

    def _forget(self, file_id: str) -> None:
        self._num_bytes -= len(self._files.pop(file_id).content)


def not_stored() -> NotStored:
    """Return the refusal of a file that is not there, or another's."""
    return NotStored(
        "no file of this id is stored here",
        param="file_id",
        code="file_not_found",
        hint="it was deleted, has expired or was forgotten; send it again",
    )
