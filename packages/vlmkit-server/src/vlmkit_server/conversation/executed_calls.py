"""Tool calls that the server executed and their results, for the APIs that report them.

:mod:`vlmkit_server.conversation.tool_loop` executes them.
"""

from collections.abc import Iterable, Sequence as Seq
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from vlmkit.types.completion import Choice
from vlmkit.types.delta import ToolCallDelta
from vlmkit.types.message import ImagePart, Part, TextPart
from vlmkit.types.tool_call import ToolCallPart

SERVER_LABEL = "server_tools"
"""The name of the tools' server, in APIs that have one: the field that requests the tools."""

_IMAGE = "[image]"


class CallResult(NamedTuple):
    """The result of one call.

    Attributes:
        text: the text that the model reads, with a placeholder for each picture.
        is_error: whether the tool failed.
    """

    text: str
    is_error: bool


class ResultDelta(ToolCallDelta, frozen=True, gc=False, kw_only=True):
    """The end of a call, with its result."""

    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Round:
    """One answer of the runner within a tool loop.

    Attributes:
        choice: the reasoning, text and calls of the answer.
        results: the results of its calls, in order; empty if none was executed.
    """

    choice: Choice
    results: Seq[CallResult] = ()

    @property
    def calls(self) -> Iterable[tuple[ToolCallPart, CallResult | None]]:
        """Each call with its result, or None if it was not executed."""
        return zip_longest(self.choice.tool_calls, self.results)


def result_text(parts: Iterable[Part]) -> str:
    """Return the text of a result, with a placeholder for each picture."""
    texts = (part.text if isinstance(part, TextPart) else _IMAGE for part in parts
            if isinstance(part, TextPart | ImagePart))  # fmt: skip
    return "\n".join(texts)
