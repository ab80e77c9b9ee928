"""Files that are kept: in memory, or on disk where the operator names a folder."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from vlmkit.errors import RequestError
from vlmkit_server.apis.files.memory_store import FileStore, StoredFile


class FileFacts(Protocol):
    """What is known of a file; see :class:`.memory_store.StoredFile`."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def filename(self) -> str: ...  # noqa: D102
    @property
    def purpose(self) -> str: ...  # noqa: D102
    @property
    def media_type(self) -> str: ...  # noqa: D102
    @property
    def created_at(self) -> int: ...  # noqa: D102
    @property
    def expires_at(self) -> int | None: ...  # noqa: D102
    @property
    def num_bytes(self) -> int: ...  # noqa: D102


@runtime_checkable
class FileStorage(Protocol):
    """Files that their owners find again."""

    async def find(self, file_id: str, owner: bytes) -> FileFacts:
        """Return what is known of a file.

        Raises:
            NotStored: there is none, or not of this owner.
        """
        ...

    async def all_of(self, owner: bytes) -> Sequence[FileFacts]:
        """Return an owner's files, the oldest first."""
        ...

    async def delete(self, file_id: str, owner: bytes) -> None:
        """Forget a file.

        Raises:
            NotStored: there is none, or not of this owner.
            RequestError: it is in use.
        """
        ...

    async def piece(self, file_id: str, owner: bytes, start: int, num_bytes: int) -> bytes:
        """Return a part of what a file holds.

        Raises:
            NotStored: there is none, or not of this owner.
        """
        ...


class FilesInMemory:
    """Files that end with the process.

    Args:
        store: has them.
    """

    def __init__(self, store: FileStore) -> None:
        self.store = store

    async def find(self, file_id: str, owner: bytes) -> StoredFile:
        """Return a file."""
        return self.store.find(file_id, owner)

    async def all_of(self, owner: bytes) -> Sequence[StoredFile]:
        """Return an owner's files, the oldest first."""
        return self.store.all_of(owner)

    async def delete(self, file_id: str, owner: bytes) -> None:
        """Forget a file."""
        self.store.delete(file_id, owner)

    async def piece(self, file_id: str, owner: bytes, start: int, num_bytes: int) -> bytes:
        """Return a part of what a file holds."""
        content = self.store.find(file_id, owner).content
        return content[start : start + num_bytes]


async def whole(files: FileStorage, file_id: str, owner: bytes, most_bytes: int) -> bytes:
    """Return what a file holds, if that is not too much.

    Raises:
        NotStored: there is none, or not of this owner.
        RequestError: it is too large to be a part of a request.
    """
    file = await files.find(file_id, owner)
    if file.num_bytes > most_bytes:
        raise RequestError(
            f"the file is over {most_bytes} bytes", param="file_id", code="file_too_large"
        )
    return await files.piece(file_id, owner, 0, file.num_bytes)
