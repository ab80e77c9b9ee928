"""What the routes of batches of messages take and answer, in Anthropic's shapes: no behaviour."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class OneMessage(msgspec.Struct):
    """One request of a batch; ``params`` is a body of ``/v1/messages``."""

    custom_id: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
    params: msgspec.Raw


class MessageBatchRequest(msgspec.Struct):
    """The body of ``POST /v1/messages/batches``."""

    requests: Annotated[list[OneMessage], Meta(min_length=1)]


class MessageCounts(msgspec.Struct):
    """How many requests of a batch ended in which way; all of them once it has ended."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, tag_field="type", tag="message_batch"):
    """A batch, in Anthropic's shape."""

    id: str
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    created_at: str
    expires_at: str
    ended_at: str | None = None
    cancel_initiated_at: str | None = None
    archived_at: str | None = None
    results_url: str | None = None


class MessageBatchesPage(msgspec.Struct):
    """Batches in a row, the newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageBatchesQuery(msgspec.Struct):
    """What page is wanted."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    after_id: str | None = None
    before_id: str | None = None


class DeletedMessageBatch(msgspec.Struct, tag_field="type", tag="message_batch_deleted"):
    """What a client learns that had a batch deleted."""

    id: str
