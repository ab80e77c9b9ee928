"""The bodies of the batch routes, in OpenAI's shapes. No behavior."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
MESSAGES: Literal["/v1/messages"] = "/v1/messages"
AnyEndpoint = Endpoint | Literal["/v1/messages"]
Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
Window = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,3}[smhd]\Z")]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class ExpiresAfter(msgspec.Struct):
    """When the results of a batch expire."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


class BatchRequest(msgspec.Struct):
    """The body of ``POST /v1/batches``."""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Endpoint
    completion_window: Window
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchError(msgspec.Struct):
    """An error in a line of a batch's input file; lines are counted from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct):
    """Why a batch failed."""

    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct):
    """The number of requests in a batch, and of those that ended, by outcome."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class InputDetails(msgspec.Struct):
    """Details of the input tokens."""

    cached_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Details of the output tokens."""

    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct):
    """The tokens of a batch so far."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class BatchBody(msgspec.Struct, kw_only=True):
    """A batch, in OpenAI's shape; times are in seconds since 1970."""

    id: str
    endpoint: AnyEndpoint
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    object: Literal["batch"] = "batch"
    model: str | None = None
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None

    @property
    def ended_at(self) -> int | None:
        """When it ended, with any outcome."""
        return self.completed_at or self.failed_at or self.expired_at or self.cancelled_at


class BatchesPage(msgspec.Struct):
    """A page of batches, the newest first."""

    data: list[BatchBody]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class BatchesQuery(msgspec.Struct):
    """The parameters of a page."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: str | None = None
