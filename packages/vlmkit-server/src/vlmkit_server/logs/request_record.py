"""The numbers that are recorded of one request while it is answered, for its log lines."""

from typing import Any

from vlmkit.interfaces.runner import AnswerStream

RECORD = "request_record"
"""The key of a request's :class:`RequestRecord` in its state, where requests are logged."""


class RequestRecord:
    """The sizes, status and answers of one request.

    Attributes:
        num_received_bytes: size of the request body.
        num_sent_bytes: size of the response body.
        status: the response's status; 0 if none was started.
        is_whole: whether the response was sent completely.
        is_client_gone: whether the client disconnected before that.
        answers: the answers that a model generated for it.
    """

    def __init__(self) -> None:
        self.num_received_bytes = 0
        self.num_sent_bytes = 0
        self.status = 0
        self.is_whole = False
        self.is_client_gone = False
        self.answers: list[AnswerStream] = []

    def fields(self) -> dict[str, Any]:
        """Return the tokens and timings of its answers; empty without an answer."""
        if not self.answers:
            return {}
        usages = [answer.usage for answer in self.answers]
        timings = [answer.timings for answer in self.answers]
        images = [tokens for usage in usages for tokens in usage.image_tokens]
        reasons = {str(reason) for answer in self.answers for reason in answer.reasons}
        return {
            "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
            "cached_tokens": sum(usage.cached_tokens for usage in usages),
            "image_tokens": sum(images),
            "images": len(images),
            "completion_tokens": sum(usage.completion_tokens for usage in usages),
            "finish": sorted(reasons),
            "prompt_s": round(max(each.prompt_s for each in timings), 6),
            "queue_s": round(max(each.queue_s for each in timings), 6),
            "first_token_s": round(max(each.first_token_s for each in timings), 6),
            "decode_s": round(max(each.decode_s for each in timings), 6),
        }
