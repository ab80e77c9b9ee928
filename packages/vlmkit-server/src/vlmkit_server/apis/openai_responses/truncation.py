"""``truncation: "auto"``: removes the oldest parts of a conversation until the rest fits.

First, whole turns before the newest user message are removed: a user message and its answers.
After that, answers with tool calls and their results after the newest user message are removed,
except the newest ones. So no call loses its result, and the conversation still starts with a user
message. Instructions stay.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from vlmkit.errors import MediaError, PromptTooLong, RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.interfaces.tokenizer import Option
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.tool_call import ToolCallPart

LIGHT: Option = "light"


class Truncated(NamedTuple):
    """The rest of a truncated request.

    Attributes:
        request: the request with the remaining messages.
        left_out: the indices of the messages that were removed.
    """

    request: Request
    left_out: frozenset[int] = frozenset()

    def restore_index(self, error: RequestError, whole: Request) -> None:
        """Set the index of an image or file in an error to its index in the full conversation."""
        if self.left_out and isinstance(error, MediaError) and error.index is not None:
            owners = [
                number
                for number, message in enumerate(whole.messages)
                for part in message.parts
                if isinstance(part, ImagePart | FilePart)
            ]
            kept = [medium for medium, number in enumerate(owners) if number not in self.left_out]
            error.index = kept[error.index]


async def truncate(request: Request, runner: Runner) -> Truncated | None:
    """Remove as few parts of a conversation as possible, so that its prompt and answer fit.

    A binary search over the parts counts the prompt's tokens a few times.

    Args:
        request: the request, which does not fit.
        runner: counts the tokens.

    Returns:
        The truncated request, or None if not even the newest turn fits.
    """
    parts = removable_parts(request.messages)
    min_removed, max_removed = 1, len(parts)
    if not (parts and await _fits(_without(request, parts).request, runner)):
        return None
    while min_removed < max_removed:
        middle = (min_removed + max_removed) // 2
        if await _fits(_without(request, parts[:middle]).request, runner):
            max_removed = middle
        else:
            min_removed = middle + 1
    return _without(request, parts[:max_removed])


def without_clamping(request: Request, runner: Runner) -> Request:
    """Return the request without clamping, unless the model never generates so many tokens.

    Without clamping, a request fails as too long and is truncated, rather than get a shorter
    answer.
    """
    params, bound = request.params or runner.facts.defaults, runner.facts.bounds.max_output_tokens
    if params.max_tokens is None or not request.clamp_max_tokens:
        return request
    if bound is not None and params.max_tokens > bound:
        return request
    return replace(request, clamp_max_tokens=False)


def check_fits(request: Request, found: PromptTokens, runner: Runner) -> None:
    """Refuse a prompt that leaves no room for the requested answer.

    Raises:
        PromptTooLong: there is no room.
    """
    params, max_removed = (
        request.params or runner.facts.defaults,
        runner.facts.limits.max_sequence_tokens,
    )
    num_tokens = len(found.token_ids)
    num_least = 1 if request.clamp_max_tokens else params.max_tokens or 1
    if num_tokens + num_least > max_removed:
        raise PromptTooLong(max_removed, f"your messages resulted in {num_tokens} tokens")


def removable_parts(messages: Sequence[Message]) -> list[frozenset[int]]:
    """Return the parts of a conversation that may be removed, oldest first, as message indices."""
    users = [number for number, message in enumerate(messages) if message.role == "user"]
    newest = users[-1] if users else -1
    before: list[list[int]] = []
    after: list[list[int]] = []
    for number, message in enumerate(messages):
        if message.role == "system" or number == newest:
            continue
        parts, begins = (
            (before, message.role == "user") if number < newest else (after, message.role != "tool")
        )
        if begins or not parts:
            parts.append([])
        parts[-1].append(number)
    found = [frozenset(part) for part in (*before, *after[:-1])]
    pairs = _pairs(messages)
    return [
        part for part in found if all((call in part) == (result in part) for call, result in pairs)
    ]


def _pairs(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Return pairs of message indices: a message with a call, and that of its result."""
    call_messages: dict[str, int] = {}
    pairs = []
    for number, message in enumerate(messages):
        calls = (part.id for part in message.parts if isinstance(part, ToolCallPart))
        call_messages |= dict.fromkeys(calls, number)
        if message.call_id in call_messages:
            pairs.append((call_messages[message.call_id], number))
    return pairs


def _without(request: Request, parts: Sequence[frozenset[int]]) -> Truncated:
    left_out = frozenset[int]().union(*parts)
    kept = [each for number, each in enumerate(request.messages) if number not in left_out]
    return Truncated(replace(request, messages=kept), left_out)


async def _fits(request: Request, runner: Runner) -> bool:
    """Return whether a prompt fits; decodes no pixels if the model counts without them."""
    options = replace(request.options, light=LIGHT in runner.facts.options)
    try:
        check_fits(request, await runner.atokenize(replace(request, options=options)), runner)
    except PromptTooLong:
        return False
    return True
