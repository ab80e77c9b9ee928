"""Records of batches and lines that the store and the runner exchange."""

from typing import Literal, NamedTuple

from vlmkit_server.apis.batches.output_lines import Used
from vlmkit_server.apis.batches.wire import AnyEndpoint, Status
from vlmkit_server.http.caller import Caller

Kind = Literal["batch", "msgbatch"]
"""The prefixes of batch ids: in OpenAI's API, and in Anthropic's."""


class OpenBatch(NamedTuple):
    """A batch that has not ended.

    Attributes:
        number: its number among all batches that ever existed.
        id: its id.
        owner: the owner that finds it and its files.
        tenant: the tenant whose caches it uses.
        account: the tenant or client network that its requests count for.
        key_id: the id of the API key that created it, if any.
        status: its status.
        ending: its final status, once that is decided.
        endpoint: the endpoint of its lines.
        input_id: the input file.
        expires_at: when it ends at the latest.
    """

    number: int
    id: str
    owner: bytes
    tenant: str
    account: str
    key_id: str
    status: Status
    ending: Status | None
    endpoint: AnyEndpoint
    input_id: str
    expires_at: int

    def caller(self, priority: int) -> Caller:
        """Return the caller of its requests."""
        return Caller(
            self.owner,
            self.tenant,
            self.account,
            is_operator=False,
            key_id=self.key_id,
            priority=priority,
        )


class TakenLine(NamedTuple):
    """A line that is to be run.

    Attributes:
        number: counted from 1.
        start: offset of its first byte in the file.
        num_bytes: its length.
        attempts: earlier attempts without a known result.
    """

    number: int
    start: int
    num_bytes: int
    attempts: int


class Done(NamedTuple):
    """The result of a line.

    Attributes:
        batch: the number of its batch.
        line: its own number.
        entry: the line for the output or error file.
        is_error: whether it belongs to the error file.
        used: the tokens that it took.
        is_left_out: whether its batch ended before it was answered.
    """

    batch: int
    line: int
    entry: bytes
    is_error: bool
    used: Used = Used()
    is_left_out: bool = False
