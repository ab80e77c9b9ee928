"""Log-probabilities of prompt tokens in vLLM's shape, for ``prompt_logprobs``."""

from collections.abc import Iterable, Iterator
from functools import cache

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.types.sample import Sample
from vlmkit_server.apis.openai_chat.answer import PromptLogprob, PromptLogprobsOfToken, finite


def prompt_logprobs(runner: Runner, samples: Iterable[Sample]) -> Iterator[PromptLogprobsOfToken]:
    """Yield the samples of a prompt in vLLM's shape."""

    @cache
    def text(token_id: int) -> str:
        return runner.token_bytes(token_id).decode(errors="replace")

    def entries(sample: Sample, logprob: float) -> Iterator[tuple[str, PromptLogprob]]:
        scored_token = PromptLogprob(finite(logprob), sample.rank, text(sample.token_id))
        yield str(sample.token_id), scored_token
        for rank, entry in enumerate(sample.top, start=1):
            if entry.token_id != sample.token_id:
                likely = PromptLogprob(finite(entry.logprob), rank, text(entry.token_id))
                yield str(entry.token_id), likely

    for sample in samples:
        yield None if sample.logprob is None else dict(entries(sample, sample.logprob))


def check_not_streamed(stream: bool | None) -> None:
    """Refuse log-probabilities of a prompt in a stream, as vLLM does.

    Raises:
        RequestError: a stream is requested.
    """
    if stream:
        raise RequestError("prompt_logprobs is not told in a stream", param="prompt_logprobs")
