"""What is noted of one request while it is answered, for the lines that are written of it."""

from typing import Any

from vlmkit.interfaces.runner import AnswerStream

NOTED = "noted"
"""The key of a request's :class:`RequestRecord` in its state, where requests are logged."""


class RequestRecord:
    """What a request sent and got, in numbers.

    Attributes:
        num_received_bytes: of its body.
        num_sent_bytes: of the body of its answer.
        status: of the answer; 0 where none was begun.
        is_whole: whether the answer was sent to its end.
        has_left: whether the client went away before that.
        answers: that a model made for it.
    """

    def __init__(self) -> None:
        self.num_received_bytes = 0
        self.num_sent_bytes = 0
        self.status = 0
        self.is_whole = False
        self.has_left = False
        self.answers: list[AnswerStream] = []

    def told(self) -> dict[str, Any]:
        """Return the tokens and times of its answers; empty where a model made none."""
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
