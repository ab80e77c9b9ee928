"""Scores the tokens of prompts: for ``echo`` of completions and ``prompt_logprobs``."""

from dataclasses import replace

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.types.request import Request
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams
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
