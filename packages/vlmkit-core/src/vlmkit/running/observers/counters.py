"""The observer that counts: what the statistics say of all requests that are over."""

from collections import Counter
from collections.abc import Mapping

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts


class Counters(Observer):
    """Counts requests, their tokens and their seconds.

    A mean is a quotient of two of its numbers: the time to the first token, say, is ``queue_s`` and
    ``first_token_s`` over ``num_finished``.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds = dict.fromkeys(("prompt_s", "queue_s", "first_token_s", "decode_s"), 0.0)

    def accepted(self, request: RequestFacts, at_s: float) -> None:  # noqa: ARG002
        """Count one more."""
        self._counts["num_accepted"] += 1

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:  # noqa: ARG002
        """Count what it took."""
        self._counts["num_finished"] += 1
        for reason in end.reasons:
            self._counts[f"num_choices_{reason}"] += 1
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            self._counts[f"num_{name}"] += getattr(end.usage, name)
        self._counts["num_image_tokens"] += sum(end.usage.image_tokens)
        for name in self._seconds:
            self._seconds[name] += getattr(end.timings, name)

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:  # noqa: ARG002
        """Count it by the kind of its error."""
        self._counts["num_failed"] += 1
        self._counts[f"num_failed_{type(error).__name__}"] += 1

    def stats(self) -> Mapping[str, float]:
        """Return every number that is not zero."""
        return {**self._counts.copy(), **self._seconds}
