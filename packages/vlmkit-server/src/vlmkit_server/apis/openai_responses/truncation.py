"""``truncation: "auto"``: what of a conversation is left out, oldest first, so that the rest fits.

Left out are whole turns before the newest user's: what a user said, and what was answered to it.
Only then, behind that turn, answers that call, with the results, but for the newest of them. So no
call stands without its result, and a conversation begins as before. Instructions stay.
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
    """What is left of a request.

    Attributes:
        request: asks with the rest of the conversation.
        left_out: the numbers of the messages that are not in it.
    """

    request: Request
    left_out: frozenset[int] = frozenset()

    def restore_index(self, error: RequestError, whole: Request) -> None:
        """Let an error about an image or a file name it by its number in the whole conversation."""
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
    """Return a request of which as little is left out as lets its prompt fit, and the answer.

    Its tokens are counted a few times: once for each halving of what may be left out.

    Args:
        request: does not fit as it is.
        runner: counts.

    Returns:
        None where not even the newest turn fits.
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
    """Return a request that is too long rather than clamped, if its answer can ever be so long."""
    params, bound = request.params or runner.facts.defaults, runner.facts.bounds.max_output_tokens
    if params.max_tokens is None or not request.clamp_max_tokens:
        return request
    if bound is not None and params.max_tokens > bound:
        return request
    return replace(request, clamp_max_tokens=False)


def check_fits(request: Request, found: PromptTokens, runner: Runner) -> None:
    """Refuse a prompt that leaves no room for the answer which is asked for.

    Raises:
        PromptTooLong: it is one.
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
    """Return the parts of a conversation that may be left out, oldest first, as message numbers."""
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
    """Return the numbers of messages that call, each with that of a result."""
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
    """Tell whether a prompt fits, where that can be without a look at a pixel."""
    options = replace(request.options, light=LIGHT in runner.facts.options)
    try:
        check_fits(request, await runner.atokenize(replace(request, options=options)), runner)
    except PromptTooLong:
        return False
    return True
