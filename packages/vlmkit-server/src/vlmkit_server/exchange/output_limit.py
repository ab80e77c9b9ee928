"""The output limit of a call, where it is lower than the requested ``max_tokens``."""

from vlmkit.interfaces.runner import Admit, RunnerFacts
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request

HEADER = "x-vlmkit-max-tokens"


class OutputLimit:
    """Reports clamped values of ``max_tokens`` in the headers of one call.

    Args:
        facts: the model's facts.
        headers: receives the lowest value, before the answer begins.
    """

    def __init__(self, facts: RunnerFacts, headers: dict[str, str]) -> None:
        self._facts = facts
        self._headers = headers

    def reported(self, request: Request, proceed: Admit | None) -> Admit | None:
        """Return the admission of a request that sets the header if the request is clamped.

        Args:
            request: the request.
            proceed: decides before the header is set.
        """
        requested = (request.params or self._facts.defaults).max_tokens
        if request.task != "generate" or not request.clamp_max_tokens or requested is None:
            return proceed

        def admit(demand: Demand) -> None:
            if proceed is not None:
                proceed(demand)
            num_tokens = demand.answer_tokens // demand.num_choices
            if num_tokens < requested:
                before = int(self._headers.get(HEADER, num_tokens))
                self._headers[HEADER] = str(min(before, num_tokens))

        return admit
