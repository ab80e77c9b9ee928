"""Calls of tools that the server runs, as APIs tell them that show them: what came of each.

How they are run is :mod:`vlmkit_server.apis.openai_chat.tool_loop`' business.
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
"""Whose tools they are, where an API has a name for that: the field by which they are asked for."""

_IMAGE = "[image]"


class CallResult(NamedTuple):
    """What came of one call.

    Attributes:
        text: what the model reads of it, with a word in the place of each picture.
        is_error: whether the tool failed.
    """

    text: str
    is_error: bool


class ResultDelta(ToolCallDelta, frozen=True, gc=False, kw_only=True):
    """The end of a call: what came of it."""

    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Round:
    """One of the answers that are read as one.

    Attributes:
        choice: what was thought, said and called.
        results: of the calls, in their order; none where nothing was run.
    """

    choice: Choice
    results: Seq[CallResult] = ()

    @property
    def calls(self) -> Iterable[tuple[ToolCallPart, CallResult | None]]:
        """Each call with what came of it, if it was run."""
        return zip_longest(self.choice.tool_calls, self.results)


def result_text(parts: Iterable[Part]) -> str:
    """Return what a result says, with a word in the place of each picture."""
    texts = (part.text if isinstance(part, TextPart) else _IMAGE for part in parts
            if isinstance(part, TextPart | ImagePart))  # fmt: skip
    return "\n".join(texts)
