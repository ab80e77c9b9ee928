"""Stores files in the process's memory: limited in number and bytes, with LRU eviction.

A file of the caller that stores most is evicted first, so that it cannot evict other callers'
files. A file is found only with the credentials that it was sent with. It is used in the event
loop's thread.
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
    """A file and its metadata.

    Attributes:
        id: its id; it cannot be guessed, since the id and the credentials give access to the file.
        number: the number of files stored before it.
        owner: its owner.
        account: the tenant or client network that it counts for.
        filename: the client's name for it.
        purpose: OpenAI's label.
        media_type: the client's media type, which is not trusted.
        content: its content.
        created_at: seconds since 1970.
        expires_at: when it is deleted; None if only eviction deletes it.
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
        """The size of its content."""
        return len(self.content)


class FileStore:
    """Stores files.

    Args:
        settings: the limits.
        now: returns the time in seconds since 1970.
    """

    def __init__(self, settings: FilesSettings, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self._policy = EvictionPolicy(settings.max_stored, settings.max_stored_bytes)
        self._numbers = itertools.count()

    def check(self) -> None:
        """Refuse an upload, before anything of it is known, where files are disabled.

        Raises:
            RequestError: the server stores no files.
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
        """Store a file, and evict others if that is needed.

        Args:
            owner: its owner.
            content: its content.
            filename: the client's name for it.
            purpose: OpenAI's label.
            media_type: the client's media type.
            lives_s: time until it expires.
            account: the tenant or client network that it counts for.

        Raises:
            RequestError: it is larger than the limit.
            Overloaded: it does not fit beside files of callers that store less.
        """
        self.check()
        most = self._settings.max_stored_bytes
        if len(content) > most:
            raise too_large(most)
        self._forget_expired()
        self._evict_for(account, len(content))
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
        self._policy.add(account, 1, len(content))
        return file

    def find(self, file_id: str, owner: bytes) -> StoredFile:
        """Return a file, and mark it as used.

        Raises:
            NotStored: it does not exist, or has another owner.
        """
        self._forget_expired()
        file = self._files.get(file_id)
        if file is None or file.owner != owner:
            raise not_stored()
        self._files.move_to_end(file_id)
        return file

    def all_of(self, owner: bytes) -> list[StoredFile]:
        """Return an owner's files, the oldest first, without marking them as used."""
        self._forget_expired()
        own = (file for file in self._files.values() if file.owner == owner)
        return sorted(own, key=lambda file: file.number)

    def delete(self, file_id: str, owner: bytes) -> None:
        """Delete a file.

        Raises:
            NotStored: it does not exist, or has another owner.
        """
        self._forget(self.find(file_id, owner).id)

    def _forget_expired(self) -> None:
        now = self._now()
        late = [
            f.id for f in self._files.values() if f.expires_at is not None and f.expires_at <= now
        ]
        for file_id in late:
            self._forget(file_id)

    def _evict_for(self, account: str, num_bytes: int) -> None:
        """Evict files until another one fits, or none if that is impossible."""
        policy, evicted = self._policy.copy(), dict[str, StoredFile]()
        while not policy.fits(1, num_bytes):
            accounts = policy.tenants_to_evict(account, 1, num_bytes)
            oldest = (self._oldest_of(each, evicted) for each in accounts)
            if (file := next(filter(None, oldest), None)) is None:
                raise Overloaded(
                    "there is no room for a file of this size beside those that others keep"
                )
            policy.add(file.account, -1, -len(file.content))
            evicted[file.id] = file
        for file_id in evicted:
            self._forget(file_id)

    def _oldest_of(self, account: str, evicted: Container[str]) -> StoredFile | None:
        """Return the least recently used file of a caller, except evicted ones."""
        own = (file for file in self._files.values() if file.account == account)
        return next((file for file in own if file.id not in evicted), None)

    def _forget(self, file_id: str) -> None:
        file = self._files.pop(file_id)
        self._policy.add(file.account, -1, -len(file.content))


def too_large(most_bytes: int) -> RequestError:
    """Return the refusal of a file that is too large."""
    return RequestError(f"file is over {most_bytes} bytes", param="file", code="file_too_large")


def not_stored() -> NotStored:
    """Return the error of a file that does not exist, or has another owner."""
    return NotStored(
        "no file of this id is stored here",
        param="file_id",
        code="file_not_found",
        hint="it was deleted, has expired or was forgotten; send it again",
    )
