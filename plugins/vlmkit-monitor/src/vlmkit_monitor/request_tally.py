"""The observer that counts the requests of one model; the observer thread calls it."""

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts, StepFacts
from vlmkit.types.completion import Chunk
from vlmkit_monitor.tally import Tally

_IMAGE_STAGES = ("fetch", "decode", "preprocess", "encode")


class _ActiveRequest:
    """A request in progress.

    Attributes:
        began_s: when building its prompt started.
        last_s: when each choice got its newest token.
        num_tokens: the number of tokens of each choice.
    """

    __slots__ = ("began_s", "last_s", "num_tokens")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.last_s: dict[int, float] = {}
        self.num_tokens: dict[int, int] = {}


class RequestTally(Observer):
    """Counts requests, tokens and times.

    Args:
        tally: the tally to count in; it has no other writer.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.is_closed = False
        self._active: dict[RequestFacts, _ActiveRequest] = {}
        self._gaps = tally.histogram("token_gap_seconds")
        self._step_s = tally.histogram("step_seconds")
        self._step_tokens = tally.histogram("step_tokens")

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        """Count a request and its parameters."""
        tally = self.tally
        self._active[request] = _ActiveRequest(at_s - request.prompt_s)
        tally.count("requests_total")
        num_image_tokens = sum(request.image_tokens)
        tally.count("prompt_tokens_total", "image", by=num_image_tokens)
        tally.count("prompt_tokens_total", "text", by=request.prompt_tokens - num_image_tokens)
        tally.histogram("request_prompt_tokens").add(request.prompt_tokens)
        tally.histogram("request_images").add(len(request.image_tokens))
        tally.histogram("request_choices").add(request.params.n)
        if request.params.max_tokens is not None:
            tally.histogram("request_max_tokens").add(request.params.max_tokens)
        tally.histogram("prepare_seconds").add(request.prompt_s)

    def first_token(self, request: RequestFacts, at_s: float) -> None:
        """Count the time to the first token."""
        if (known := self._active.get(request)) is not None:
            self.tally.histogram("time_to_first_token_seconds").add(at_s - known.began_s)

    def tokens(self, request: RequestFacts, chunk: Chunk, at_s: float) -> None:
        """Count the time since the previous token."""
        known = self._active.get(request)
        if known is None or not chunk.samples:
            return
        index = chunk.index
        if (last_s := known.last_s.get(index)) is not None:
            self._gaps.add(at_s - last_s)
        known.last_s[index] = at_s
        known.num_tokens[index] = known.num_tokens.get(index, 0) + len(chunk.samples)

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        """Count the usage and timings of a request."""
        tally, usage, timings = self.tally, end.usage, end.timings
        known = self._active.pop(request, None)
        for reason in end.reasons:
            tally.count("choices_total", reason)
        tally.count("cached_prompt_tokens_total", by=usage.cached_tokens)
        tally.count("answer_tokens_total", "reasoning", by=usage.reasoning_tokens)
        num_text = usage.completion_tokens - usage.reasoning_tokens
        tally.count("answer_tokens_total", "text", by=num_text)
        tally.histogram("request_generated_tokens").add(usage.completion_tokens)
        if known is not None:
            tally.histogram("request_seconds").add(at_s - known.began_s)
            if known.num_tokens:
                most = max(known.num_tokens.values())
                tally.histogram("longest_choice_tokens").add(most)
                if most > 1:
                    per_token_s = timings.decode_s / (most - 1)
                    tally.histogram("time_per_output_token_seconds").add(per_token_s)
        tally.histogram("queue_seconds").add(timings.queue_s)
        tally.histogram("prefill_seconds").add(timings.first_token_s)
        tally.histogram("decode_seconds").add(timings.decode_s)
        for image in timings.images:
            for name in _IMAGE_STAGES:
                if (took_s := getattr(image, name).took_s) > 0.0:
                    tally.histogram("image_seconds", name).add(took_s)

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:  # noqa: ARG002
        """Count a failure by the kind of its error."""
        self._active.pop(request, None)
        self.tally.count("request_failures_total", type(error).__name__)

    def step(self, step: StepFacts, at_s: float) -> None:  # noqa: ARG002
        """Count a step."""
        self._step_s.add(step.step_s)
        self._step_tokens.add(step.num_tokens)

    def close(self) -> None:
        """Stop counting."""
        self.is_closed = True
        self._active.clear()
