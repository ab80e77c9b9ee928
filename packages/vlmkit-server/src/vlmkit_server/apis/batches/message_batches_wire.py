"""The bodies of the message batch routes, in Anthropic's shapes. No behavior."""

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
    """Numbers of requests by outcome; all are set once the batch has ended."""

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
    """A page of batches, the newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageBatchesQuery(msgspec.Struct):
    """The parameters of a page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    after_id: str | None = None
    before_id: str | None = None


class DeletedMessageBatch(msgspec.Struct, tag_field="type", tag="message_batch_deleted"):
    """The response to the deletion of a batch."""

    id: str
