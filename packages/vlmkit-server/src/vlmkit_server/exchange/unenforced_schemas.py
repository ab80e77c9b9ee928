"""Reports the schema keywords that the answers of a call are not constrained to."""

from collections.abc import Callable, Iterable

from vlmkit.interfaces.runner import Admit
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request

HEADER = "x-vlmkit-unconstrained"
MAX_CHARS = 960  # of the header's value; further names are counted


class UnenforcedSchemas:
    """Reports them in the headers of one call.

    Args:
        headers: receives the header before the answer begins.
        count: called once, if there are any.
    """

    def __init__(self, headers: dict[str, str], count: Callable[[], None]) -> None:
        self._headers = headers
        self._count = count
        self._found: dict[str, None] = {}

    def reported(self, request: Request, proceed: Admit | None) -> Admit | None:
        """Return the admission of a request that sets the header, once its constraint is compiled.

        Args:
            request: the request.
            proceed: decides before the header is set.
        """

        def admit(demand: Demand) -> None:
            if proceed is not None:
                proceed(demand)
            if demand.unconstrained:
                if not self._found:
                    self._count()
                self._found |= dict.fromkeys(demand.unconstrained)
                self._headers[HEADER] = header_value(self._found)

        return admit if request.task == "generate" else proceed


def header_value(names: Iterable[str]) -> str:
    """Return names of schema keywords as a header value of bounded length."""
    shown, num_chars, num_more = list[str](), 0, 0
    for name in names:
        num_chars += len(name) + 2
        if num_chars <= MAX_CHARS:
            shown.append(name)
        else:
            num_more += 1
    return ", ".join([*shown, f"{num_more} more"] if num_more else shown)
