"""The bodies of the file routes, in OpenAI's and Anthropic's shapes. No behavior."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Seconds = Annotated[int, Meta(ge=3600, le=2_592_000)]


class FileForm(msgspec.Struct):
    """The fields of ``POST /v1/files``, which is sent as ``multipart/form-data``.

    ``purpose`` and ``expires_after`` are OpenAI's, ``expires_in_seconds`` is Anthropic's.
    """

    file: bytes
    purpose: Literal["assistants", "batch", "user_data", "vision"] | None = None
    expires_after_anchor: Literal["created_at"] | None = msgspec.field(
        name="expires_after[anchor]", default=None
    )
    expires_after_seconds: Seconds | None = msgspec.field(
        name="expires_after[seconds]", default=None
    )
    expires_in_seconds: Seconds | None = None


class FileBody(msgspec.Struct):
    """A file, in OpenAI's shape."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FilesPage(msgspec.Struct):
    """A page of files, in OpenAI's shape."""

    data: list[FileBody]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class DeletedFile(msgspec.Struct):
    """The response to a deletion, in OpenAI's shape."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FilesQuery(msgspec.Struct):
    """The parameters of a page; ``page`` is Anthropic's, and limits ``limit`` to 1000."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    purpose: str | None = None
    page: str | None = None


class FileMetadata(msgspec.Struct, tag_field="type", tag="file"):
    """A file, in Anthropic's shape."""

    id: str
    created_at: str
    filename: str
    mime_type: str
    size_bytes: int
    expires_at: str | None
    downloadable: Literal[True] = True


class FileMetadataPage(msgspec.Struct):
    """A page of files, in Anthropic's shape."""

    data: list[FileMetadata]
    has_more: bool
    first_id: str | None
    last_id: str | None
    next_page: str | None


class DeletedFileMetadata(msgspec.Struct, tag_field="type", tag="file_deleted"):
    """The response to a deletion, in Anthropic's shape."""

    id: str
