"""Files that are kept for later: bounded in number and bytes, forgotten by least recent use.

Whoever keeps most forgets first, so that nobody's files are pushed out by those of one who keeps
more.
They live as long as the process, in its memory, and are found only with the credentials that they
were sent with. Is called in the event loop's thread.
"""

import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import NamedTuple

from vlmkit.errors import RequestError
from vlmkit.running.scheduling.eviction import EvictionPolicy
from vlmkit_server.http.errors import NotStored, Overloaded
from vlmkit_server.settings.server import FilesSettings


class StoredFile(NamedTuple):
    """A file, and what was said of it.

    Attributes:
        id: what it is called; whoever knows it and has the credentials may read the file, so it
            cannot be guessed.
        number: how many were stored before.
        owner: whose it is.
        account: on whose account it is kept.
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
    account: str
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
        self._holdings = EvictionPolicy(settings.max_stored, settings.max_stored_bytes)
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
        account: str = "",
    ) -> StoredFile:
        """Keep a file, and forget others where there is no room for it.

        Args:
            owner: whose it is.
            content: what it holds.
            filename: a label.
            purpose: another.
            media_type: what it is said to be.
            lives_s: time after which it is forgotten.
            account: on whose account it is kept.

        Raises:
            RequestError: it would not fit if it were the only one.
            Overloaded: it does not fit beside those of others, who keep less.
        """
        self.check()
        most = self._settings.max_stored_bytes
        if len(content) > most:
            raise too_large(most)
        self._forget_expired()
        self._make_room(account, len(content))
        created_at = int(self._now())
        expires_at = None if lives_s is None else created_at + lives_s
        file = StoredFile(
            f"file-{secrets.token_hex(24)}",
            next(self._numbers),
            owner,
            account,
            filename,
            purpose,
            media_type,
            content,
            created_at,
            expires_at,
        )
        self._files[file.id] = file
        self._holdings.add(account, 1, len(content))
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

    def _make_room(self, account: str, num_bytes: int) -> None:
        """Forget files until there is room for another one of an account, or none if that fails."""
        left, gone = self._holdings.copy(), dict[str, StoredFile]()
        while not left.fits(1, num_bytes):
            accounts = left.tenants_to_evict(account, 1, num_bytes)
            oldest = (self._oldest_of(each, gone) for each in accounts)
            if (file := next(filter(None, oldest), None)) is None:
                raise Overloaded(
                    "there is no room for a file of this size beside those that others keep"
                )
            left.add(file.account, -1, -len(file.content))
            gone[file.id] = file
        for file_id in gone:
            self._forget(file_id)

    def _oldest_of(self, account: str, gone: Container[str]) -> StoredFile | None:
        """Return the file of an account that was used least recently, but for some."""
        own = (file for file in self._files.values() if file.account == account)
        return next((file for file in own if file.id not in gone), None)

    def _forget(self, file_id: str) -> None:
        file = self._files.pop(file_id)
        self._holdings.add(file.account, -1, -len(file.content))


def too_large(most_bytes: int) -> RequestError:
    """Return the refusal of a file that is larger than one may be."""
    return RequestError(f"file is over {most_bytes} bytes", param="file", code="file_too_large")


def not_stored() -> NotStored:
    """Return the refusal of a file that is not there, or another's."""
    return NotStored(
        "no file of this id is stored here",
        param="file_id",
        code="file_not_found",
        hint="it was deleted, has expired or was forgotten; send it again",
    )
