"""Writes what a runner generates as messages of vLLM's service."""

from collections.abc import Iterable, Iterator, Sequence as Seq
from itertools import groupby

from vlmkit.interfaces.runner import AnswerStream
from vlmkit.types.completion import Chunk, FinishReason
from vlmkit.types.sample import Sample
from vlmkit_grpc.protocol.vllm_pb2 import (
    CandidateTokenInfo,
    FinishInfo,
    GenerateRequest,
    GenerateResponse,
    PromptInfo,
    SequenceOutput,
)

_REASONS: dict[FinishReason, FinishInfo.FinishReason] = {
    "length": FinishInfo.LENGTH,
    "stop": FinishInfo.STOP,
    "abort": FinishInfo.ABORTED,
}


class Answers:
    """Encodes the answers to one request.

    Args:
        message: the request.
        stream: the stream of its answers.
        eos_ids: tokens that end an answer of the model.
        stop_token_ids: tokens that end an answer of this request.
    """

    def __init__(
        self,
        message: GenerateRequest,
        stream: AnswerStream,
        eos_ids: frozenset[int],
        stop_token_ids: Iterable[int],
    ) -> None:
        response = message.response
        self._has_prompt_ids = response.prompt_token_ids
        self._has_text = response.output_text if response.HasField("output_text") else True
        self._has_ids = response.output_token_ids
        self._num_top = response.output_candidates.top_n if response.output_logprobs else None
        self.stream = stream
        self._eos_ids = eos_ids
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_tokens = [0] * stream.num_choices

    def prompt(self) -> PromptInfo:
        """Return what is said of the prompt."""
        ids = self.stream.prompt_token_ids
        return PromptInfo(
            num_prompt_tokens=len(ids), token_ids=ids if self._has_prompt_ids else None
        )

    def messages(self, chunks: Iterable[Chunk]) -> Iterator[GenerateResponse]:
        """Yield the messages of chunks; those of one answer that came together are one message."""
        for index, group in groupby(chunks, lambda chunk: chunk.index):
            yield GenerateResponse(outputs=self.output(index, list(group)))

    def output(self, index: int, chunks: Seq[Chunk]) -> SequenceOutput:
        """Return the tokens of chunks of one answer."""
        samples = [sample for chunk in chunks for sample in chunk.samples]
        self._num_tokens[index] += len(samples)
        output = SequenceOutput(
            index=index,
            text="".join([chunk.text for chunk in chunks]) if self._has_text else "",
            num_tokens=len(samples),
            token_ids=[sample.token_id for sample in samples] if self._has_ids else None,
        )
        if self._num_top is not None:
            output.logprobs.extend(sample.logprob or 0.0 for sample in samples)
            output.ranks.extend(map(_rank, samples))
            if self._num_top:
                output.candidate_tokens.extend(map(_candidates, samples))
        self._finish(output, chunks[-1], samples)
        return output

    def _finish(self, output: SequenceOutput, last: Chunk, samples: Seq[Sample]) -> None:
        """State why an answer ended, if it did."""
        if last.finish_reason is None:
            return
        info = output.finish_info
        info.finish_reason = _REASONS[last.finish_reason]
        info.num_output_tokens = self._num_tokens[output.index]
        if last.finish_reason != "stop":
            return
        token_id = samples[-1].token_id if samples else None
        if last.stop_string is not None:
            info.stop_string = last.stop_string
        elif token_id in self._stop_token_ids:
            info.stop_token_id = token_id
        elif token_id in self._eos_ids:
            info.eos_token_id = token_id


def _rank(sample: Sample) -> int:
    """Return the rank of a chosen token among the candidates; 0 if it is none of them."""
    ids = [entry.token_id for entry in sample.top]
    return ids.index(sample.token_id) + 1 if sample.token_id in ids else 0


def _candidates(sample: Sample) -> CandidateTokenInfo:
    """Return the candidates at a position without the chosen token."""
    return CandidateTokenInfo(
        tokens=[
            CandidateTokenInfo.TokenInfo(id=entry.token_id, logprob=entry.logprob, rank=rank)
            for rank, entry in enumerate(sample.top, 1)
            if entry.token_id != sample.token_id
        ]
    )
