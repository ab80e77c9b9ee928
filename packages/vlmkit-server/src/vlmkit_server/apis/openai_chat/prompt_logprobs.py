"""Log-probabilities of prompt tokens, for ``echo`` of completions and ``prompt_logprobs``."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.types.request import Request
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.apis.openai_chat.answer import PromptLogprob, PromptLogprobsOfToken, finite
from vlmkit_server.http.errors import Unavailable

MAX_LOGPROBS = 2**20  # per body: each takes some hundred bytes until the answer is written


class PromptScorer:
    """Scores the tokens of the prompts of one body.

    Args:
        runner: computes the log-probabilities.
        num_top: the number of likeliest alternatives reported for each token.
        field: the field of the body that requests the scores, for errors.
    """

    def __init__(self, runner: Runner, num_top: int, field: str) -> None:
        self._runner = runner
        self._params = SamplingParams(logprobs=True, top_logprobs=num_top)
        self._field = field
        self._num_left = MAX_LOGPROBS

    async def score(self, request: Request) -> list[Sample]:
        """Return every token of a prompt, with its log-probability if it is part of a text.

        Args:
            request: the request that has the prompt.

        Raises:
            RequestError: the request is wrong, or the body has too many log-probabilities.
        """
        prompt = await self._runner.atokenize(request)
        self._num_left -= len(prompt.token_ids) * (self._params.top_logprobs + 1)
        if self._num_left < 0:
            problem = f"{self._field} asks for over {MAX_LOGPROBS} log-probabilities of tokens"
            raise RequestError(problem, param=self._field)
        samples = [Sample(token_id) for token_id in prompt.token_ids]
        if not prompt.texts:
            return samples
        score_request = replace(
            request, task="score", params=self._params, constraint=None, tool_choice="none"
        )
        completion = await (await self._runner.asubmit(score_request)).aresult()
        for (start, stop), choice in zip(prompt.texts, completion.choices, strict=True):
            if choice.finish_reason == "abort":
                raise Unavailable("the answer was cut off", code="aborted")
            samples[start:stop] = choice.samples
        return samples


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


def check_not_streamed(num_top: int | None, stream: bool | None) -> None:
    """Refuse log-probabilities of a prompt in a stream, as vLLM does.

    Raises:
        RequestError: both are requested.
    """
    if num_top is not None and stream:
        raise RequestError("prompt_logprobs is not told in a stream", param="prompt_logprobs")
