"""Where an error came from, without its text: what a library says may repeat what a client sent.

Writes to no log: that is for whoever caught it.
"""

import traceback
from collections.abc import Iterator

from vlmkit.errors import VlmkitError


def trace_of(error: BaseException) -> str:
    """Return the types and places of an error and of its causes; of ours, their texts, too."""
    return "".join(_parts(error, set())).rstrip("\n")


def _parts(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _parts(before, seen)
        yield "which led to:\n"
    yield from traceback.format_tb(error.__traceback__)
    text = f": {error}" if isinstance(error, VlmkitError) else ""
    yield f"{type(error).__module__}.{type(error).__qualname__}{text}\n"
