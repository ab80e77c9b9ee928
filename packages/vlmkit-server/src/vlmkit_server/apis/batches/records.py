"""What is said of batches and their lines between who keeps them and who asks them."""

from typing import Literal, NamedTuple

from vlmkit_server.apis.batches.output_lines import Used
from vlmkit_server.apis.batches.wire import AnyEndpoint, Status
from vlmkit_server.http.caller import Caller

Kind = Literal["batch", "msgbatch"]
"""How ids of batches begin: of OpenAI's API, and of Anthropic's."""


class OpenBatch(NamedTuple):
    """A batch that has not ended.

    Attributes:
        number: of all batches that there ever were.
        id: how its owner calls it.
        owner: whose it is.
        tenant: whose caches it uses.
        account: on whose account is what it takes.
        key_id: what the key is called with which it was made, if any.
        status: how far it is.
        ending: what it will have been, once that is known.
        endpoint: what its lines are for.
        input_id: the file that has them.
        expires_at: when it ends, whatever is left.
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
        """Return who asks its lines."""
        return Caller(
            self.owner,
            self.tenant,
            self.account,
            is_operator=False,
            key_id=self.key_id,
            priority=priority,
        )


class TakenLine(NamedTuple):
    """A line that is to be asked.

    Attributes:
        number: counted from 1.
        start: its first byte in the file.
        num_bytes: how many it has.
        attempts: how often it was asked before, and nobody learnt what came of it.
    """

    number: int
    start: int
    num_bytes: int
    attempts: int


class Done(NamedTuple):
    """What came of a line.

    Attributes:
        batch: the number of its batch.
        line: its own.
        entry: what is written of it.
        is_error: in which file.
        used: the tokens that it took.
        is_left_out: whether its batch ended before it was answered.
    """

    batch: int
    line: int
    entry: bytes
    is_error: bool
    used: Used = Used()
    is_left_out: bool = False
