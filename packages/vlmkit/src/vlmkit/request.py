"""What someone asks of a pipeline: a conversation and how to answer it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmkit.errors import RequestError
from vlmkit.message import Message
from vlmkit.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        messages: the conversation so far.
        params: how to choose tokens; None takes the model's own defaults.
        tools: tool definitions for the chat template.
        tenant: whose request it is; caches are never shared between tenants.
        priority: smaller runs first.
        id: how logs and answers call it; made up when empty.
    """

    messages: Sequence[Message]
    params: SamplingParams | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tenant: str = ""
    priority: int = 0
    id: str = field(default="")

    def __post_init__(self) -> None:
        if not isinstance(self.priority, int):  # it would break the order of everybody's queue
            raise RequestError("priority must be a whole number", param="priority")
