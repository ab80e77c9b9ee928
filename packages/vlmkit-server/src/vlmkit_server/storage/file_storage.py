"""The storage of files: in memory, or on disk if the operator sets a data folder."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from vlmkit.errors import RequestError
from vlmkit_server.storage.memory_store import FileStore, StoredFile


class FileFacts(Protocol):
    """The facts of a file; see :class:`.memory_store.StoredFile`."""

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
    """Stores files of clients."""

    async def find(self, file_id: str, owner: bytes) -> FileFacts:
        """Return the facts of a file.

        Raises:
            NotStored: it does not exist, or has another owner.
        """
        ...

    async def all_of(self, owner: bytes) -> Sequence[FileFacts]:
        """Return an owner's files, the oldest first."""
        ...

    async def delete(self, file_id: str, owner: bytes) -> None:
        """Delete a file.

        Raises:
            NotStored: it does not exist, or has another owner.
            RequestError: it is in use.
        """
        ...

    async def piece(self, file_id: str, owner: bytes, start: int, num_bytes: int) -> bytes:
        """Return a part of a file's content.

        Raises:
            NotStored: it does not exist, or has another owner.
        """
        ...


class FilesInMemory:
    """Stores files until the process ends.

    Args:
        store: the file store.
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
        """Delete a file."""
        self.store.delete(file_id, owner)

    async def piece(self, file_id: str, owner: bytes, start: int, num_bytes: int) -> bytes:
        """Return a part of a file's content."""
        content = self.store.find(file_id, owner).content
        return content[start : start + num_bytes]


async def whole(files: FileStorage, file_id: str, owner: bytes, most_bytes: int) -> bytes:
    """Return a file's content, if it is not too large.

    Raises:
        NotStored: it does not exist, or has another owner.
        RequestError: it is too large to be a part of a request.
    """
    file = await files.find(file_id, owner)
    if file.num_bytes > most_bytes:
        raise RequestError(
            f"the file is over {most_bytes} bytes", param="file_id", code="file_too_large"
        )
    return await files.piece(file_id, owner, 0, file.num_bytes)
