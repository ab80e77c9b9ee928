"""Response headers that say where an answer differs from what its request asks for.

They are set before the answer begins, when a request is admitted: a lower ``max_tokens``, and the
schema keywords that the answer is not constrained to.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request

MAX_TOKENS_HEADER = "x-vlmkit-max-tokens"
UNCONSTRAINED_HEADER = "x-vlmkit-unconstrained"
MAX_CHARS = 960  # of a list of schema keywords; further names are counted


@dataclass(slots=True)
class DemandHeaders:
    """Sets the headers of one response.

    Attributes:
        headers: the response headers.
        count_unenforced: called once, if there are schema keywords that are not enforced.
        unenforced: these keywords, in order.
    """

    headers: dict[str, str]
    count_unenforced: Callable[[], None]
    unenforced: dict[str, None] = field(default_factory=dict)

    def report(self, request: Request, demand: Demand, facts: RunnerFacts) -> None:
        """Set the headers for one of the requests of a response.

        Args:
            request: the request.
            demand: what it takes.
            facts: the facts of its model.
        """
        if request.task != "generate":
            return
        requested = (request.params or facts.defaults).max_tokens
        if request.clamp_max_tokens and requested is not None:
            num_tokens = demand.answer_tokens // demand.num_choices
            if num_tokens < requested:
                before = int(self.headers.get(MAX_TOKENS_HEADER, num_tokens))
                self.headers[MAX_TOKENS_HEADER] = str(min(before, num_tokens))
        if demand.unconstrained:
            if not self.unenforced:
                self.count_unenforced()
            self.unenforced |= dict.fromkeys(demand.unconstrained)
            self.headers[UNCONSTRAINED_HEADER] = header_value(self.unenforced)


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
