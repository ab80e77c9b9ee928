"""Tokens of prompts that wait in one process: the load that routing and autoscaling compare.

It counts in the process with the engine. Its numbers travel with the statistics of the runner.
"""

from collections.abc import Mapping

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts
from vlmkit.types.runner_stats import RunnerStats

OBSERVER = "worker"
"""The name of the load among the observed numbers of a runner's statistics."""
WAITING_TOKENS = "waiting_tokens"


class LoadObserver(Observer):
    """Counts the tokens of prompts that were accepted and have no answer yet."""

    def __init__(self) -> None:
        self._waiting: dict[RequestFacts, int] = {}
        self._num_tokens = 0

    def accepted(self, request: RequestFacts, at_s: float) -> None:  # noqa: ARG002
        """Count the prompt of a request."""
        self._waiting[request] = request.prompt_tokens
        self._num_tokens += request.prompt_tokens

    def first_token(self, request: RequestFacts, at_s: float) -> None:  # noqa: ARG002
        """The prompt is computed."""
        self._leave(request)

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:  # noqa: ARG002
        """The request ended, perhaps before its first token."""
        self._leave(request)

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:  # noqa: ARG002
        """The request failed."""
        self._leave(request)

    def _leave(self, request: RequestFacts) -> None:
        self._num_tokens -= self._waiting.pop(request, 0)

    def stats(self) -> Mapping[str, float]:
        """Return the tokens that wait."""
        return {WAITING_TOKENS: self._num_tokens}


def waiting_tokens(stats: RunnerStats) -> int:
    """Return the tokens that wait, from statistics with the numbers of a :class:`LoadObserver`."""
    return int(stats.observed.get(OBSERVER, {}).get(WAITING_TOKENS, 0))
