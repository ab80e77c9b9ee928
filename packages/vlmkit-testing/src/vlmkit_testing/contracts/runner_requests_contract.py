"""What every runner must do with each part of a request: none is lost on its way to an engine."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import pytest

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.types.completion import Choice, Chunk, Completion
from vlmkit.types.delta import ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.types.demand import Demand
from vlmkit.types.message import Message, images_of
from vlmkit.types.prompt_options import PromptOptions, ReasoningEffort
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.sample import Sample
from vlmkit_testing.contracts.pictures import picture
from vlmkit_testing.contracts.runner_subject import RunnerSubject
from vlmkit_testing.contracts.tokenizer_subject import tool

VECTOR_ATOL = 0.05  # of two runs of one engine


@dataclass
class ReadChoice:
    """What the reader of an answer learns of one choice."""

    text: str = ""
    reasoning: str = ""
    arguments: str = ""
    samples: list[tuple[object, ...]] = field(default_factory=list)
    reason: str | None = None
    stop_string: str | None = None
    places: tuple[object, ...] = ()
    vector: list[float] | None = None

    def add(self, chunk: Chunk) -> None:
        """Append a chunk of the choice."""
        assert self.reason is None, "a chunk follows the last one of its choice"
        for delta in chunk.deltas:
            self.text += delta.text if isinstance(delta, TextDelta) else ""
            self.reasoning += delta.text if isinstance(delta, ReasoningDelta) else ""
            self.arguments += delta.arguments if isinstance(delta, ToolCallDelta) else ""
        self.samples += map(_facts_of, chunk.samples)
        self.reason, self.stop_string = chunk.finish_reason, chunk.stop_string
        self.places, self.vector = chunk.places, _numbers(chunk.embedding)


class RunnerRequestsContract(RunnerSubject):
    """Requests of several kinds, and everything that an answer has."""

    def test_each_kind_of_answer_is_the_same_however_it_is_read(self) -> None:
        """Texts, log-probabilities, stop strings, vectors and scores, of each choice."""
        with self._runner() as runner:
            for request in self._requests(runner):
                expected = None
                for read in (_iterated, _whole, _in_lots, _iterated_async, _whole_async):
                    try:
                        choices, stream = read(runner, request)
                    except RequestError:
                        assert expected is None, "one way of reading is refused"
                        break
                    assert stream.usage.completion_tokens == sum(
                        len(each.samples) for each in choices
                    )
                    assert sorted(stream.reasons) == sorted(str(each.reason) for each in choices)
                    assert len(choices) == stream.num_choices
                    expected = expected or choices
                    _check_alike(choices, expected)

    def test_each_part_of_a_request_is_in_its_prompt(self) -> None:
        """An answer has the prompt that atokenize() remessages, and its demand states its size."""

        async def counted(runner: Runner, request: Request) -> PromptTokens:
            return await runner.atokenize(request)

        with self._runner() as runner:
            plain = asyncio.run(counted(runner, self.request())).token_ids
            for request, is_other in self._prompts(runner):
                demands: list[Demand] = []
                try:
                    stream = runner.submit(request, demands.append)
                    stream.result()
                except RequestError:
                    continue
                prompt = asyncio.run(counted(runner, request))
                assert tuple(stream.prompt_token_ids) == prompt.token_ids
                assert stream.usage.prompt_tokens == len(prompt.token_ids)
                assert stream.usage.image_tokens == prompt.image_tokens
                assert [each.prompt_tokens for each in demands] == [len(prompt.token_ids)]
                assert [each.image_tokens for each in demands] == [prompt.image_tokens]
                assert len(prompt.image_tokens) == len(list(images_of(request.messages)))
                assert not is_other or prompt.token_ids != plain

    def test_the_reasoning_effort_reaches_the_prompt(self) -> None:
        """Some two efforts have different prompts."""

        async def counted(runner: Runner, request: Request) -> PromptTokens:
            return await runner.atokenize(request)

        with self._runner() as runner:
            if "reasoning_effort" not in runner.facts.options:
                pytest.skip("it has no reasoning_effort")
            found = set()
            for effort in get_args(ReasoningEffort):
                asked = replace(self.request(), options=PromptOptions(reasoning_effort=effort))
                try:
                    found.add(asyncio.run(counted(runner, asked)).token_ids)
                except RequestError:  # a model may always think
                    continue
            assert len(found) > 1

    def test_admission_is_the_same_in_an_event_loop(self) -> None:
        """It is asked once, and its error is raised unchanged, of any class."""
        demands: list[Demand] = []

        class NotNow(Exception):  # noqa: N818 - of a caller
            """An error that is none of vlmkit's."""

        def refuse(_: Demand) -> None:
            raise NotNow("not now")

        async def answered(runner: Runner, request: Request) -> Completion:
            return await (await runner.asubmit(request, demands.append)).aresult()

        async def refused(runner: Runner, request: Request) -> None:
            with pytest.raises(NotNow):
                await runner.asubmit(request, refuse)

        with self._runner() as runner:
            request = self.request(n=2)
            done = asyncio.run(answered(runner, request))
            assert demands == [Demand(done.usage.prompt_tokens, (), 12, 2)]
            asyncio.run(refused(runner, request))
            with pytest.raises(NotNow):
                runner.submit(request, refuse).result()

    def test_an_admission_that_waits_holds_no_event_loop(self) -> None:
        """It may wait for a moment, here for the loop itself."""

        async def answered(runner: Runner, request: Request) -> Completion:
            loop, is_called = asyncio.get_running_loop(), threading.Event()

            def admit(_: Demand) -> None:
                loop.call_soon_threadsafe(is_called.set)
                assert is_called.wait(self.timeout_s), "the event loop waits for a decision"

            return await (await runner.asubmit(request, admit)).aresult()

        with self._runner() as runner:
            asyncio.run(answered(runner, self.request()))

    @pytest.mark.parametrize("is_asked_first", [False, True])
    def test_a_request_that_is_cancelled_before_it_is_accepted_ends(
        self, is_asked_first: bool
    ) -> None:
        """While its prompt is built, or while its admission waits; later requests are answered."""

        async def cancelled(runner: Runner, request: Request) -> None:
            loop, is_asked = asyncio.get_running_loop(), asyncio.Event()
            may_decide = threading.Event()

            def admit(_: Demand) -> None:
                loop.call_soon_threadsafe(is_asked.set)
                assert may_decide.wait(self.timeout_s), "the event loop waits for a decision"

            submitting = asyncio.ensure_future(runner.asubmit(request, admit))
            await (is_asked.wait() if is_asked_first else asyncio.sleep(0))
            submitting.cancel()
            await asyncio.sleep(0)
            may_decide.set()
            with contextlib.suppress(asyncio.CancelledError):
                await submitting
            await (await runner.asubmit(self.request())).aresult()

        with self._runner() as runner:
            asyncio.run(cancelled(runner, self._endless_request(runner)))
            gc.collect()
            assert self._eventually(lambda: not self._num_open(runner)), "it runs on"

    def test_a_request_without_parameters_uses_the_defaults(self) -> None:
        """The facts state them."""
        with self._runner() as runner:
            demands: list[list[Demand]] = [[], []]
            for params, found in zip((None, runner.facts.defaults), demands, strict=True):
                stream = runner.submit(replace(self.request(), params=params), found.append)
                stream.abort()
                stream.result()
            assert demands[0] == demands[1]

    def test_too_many_answer_tokens_are_refused_or_lowered(self) -> None:
        """As the request asks."""
        with self._runner() as runner:
            asked = self.request(runner.facts.limits.max_sequence_tokens)
            with pytest.raises(RequestError):
                runner.submit(asked).result()
            demands: list[Demand] = []
            stream = runner.submit(replace(asked, clamp_max_tokens=True), demands.append)
            stream.abort()
            stream.result()
            assert 0 < demands[0].answer_tokens < runner.facts.limits.max_sequence_tokens

    def test_an_aborted_answer_keeps_what_was_generated(self) -> None:
        """In chunks and as a whole; its usage is that of the part."""
        with self._runner() as runner:
            stream = self._endless(runner)
            assert self._eventually(lambda: stream.usage.completion_tokens > 2)
            num_tokens = stream.usage.completion_tokens
            stream.abort()
            done = stream.result()
            assert len(done.choices[0].samples) >= num_tokens
            assert done.usage.completion_tokens == len(done.choices[0].samples)
            stream, read = self._endless(runner), ReadChoice()
            for chunk in stream:
                read.add(chunk)
                if len(read.samples) > 2:
                    stream.abort()
            assert read.reason == "abort"
            assert stream.usage.completion_tokens == len(read.samples)

    # Helpers

    def _requests(self, runner: Runner) -> Iterable[Request]:
        """Yield requests of several kinds."""
        asked = self.request()
        whole = runner.submit(asked).result().choices[0]
        yield self.request(n=2, seed=3)
        yield self.request(logprobs=True, top_logprobs=2)
        yield self.request(n=2, stop=(whole.text[len(whole.text) // 2 :][:1] or "x",))
        yield replace(asked, tools=[tool()])
        yield Request(text="Once upon a time", task="embed")
        ids = [i for i in whole.token_ids if i not in runner.facts.eos_ids][:1]
        yield Request(token_ids=ids * 4, task="score", continuations=[ids, ids * 3])
        if runner.facts.takes_images:
            shown = Message.of("user", "What is this?", [picture(), picture(64, 48)])
            yield replace(asked, messages=[shown])

    def _prompts(self, runner: Runner) -> Iterable[tuple[Request, bool]]:
        """Yield requests, each with whether its prompt must differ from that of ``request()``."""
        asked, options = self.request(), runner.facts.options
        yield asked, False
        yield replace(asked, tools=[tool()]), True
        yield replace(asked, messages=[Message.of("system", "Be brief."), *asked.messages]), True
        for adds_special in (False, True):
            yield Request(text="Once", adds_special=adds_special, params=asked.params), True
        if "continue_final_message" in options:
            goes_on = PromptOptions(continue_final_message=True)
            messages = [*asked.messages, Message.of("assistant", "It was")]
            yield replace(asked, messages=messages, options=goes_on), True
        if "add_generation_prompt" in options:
            yield replace(asked, options=PromptOptions(add_generation_prompt=False)), False
        if runner.facts.takes_images:
            for images in ([picture()], [picture(seed=1), picture(64, 48)]):
                yield replace(asked, messages=[Message.of("user", "And this?", images)]), True


Read = tuple[list[ReadChoice], AnswerStream]


def _gathered(chunks: Iterable[Chunk], stream: AnswerStream) -> Read:
    choices = [ReadChoice() for _ in range(stream.num_choices)]
    for chunk in chunks:
        choices[chunk.index].add(chunk)
    return choices, stream


def _iterated(runner: Runner, request: Request) -> Read:
    stream = runner.submit(request)
    return _gathered(stream, stream)


def _whole(runner: Runner, request: Request) -> Read:
    stream = runner.submit(request)
    return _of_completion(stream.result(), stream)


def _in_lots(runner: Runner, request: Request) -> Read:
    async def read() -> Read:
        stream, chunks = await runner.asubmit(request), list[Chunk]()
        while lot := await stream.next_chunks():
            chunks += lot
        return _gathered(chunks, stream)

    return asyncio.run(read())


def _iterated_async(runner: Runner, request: Request) -> Read:
    async def read() -> Read:
        stream: Any = await runner.asubmit(request)
        chunks: AsyncIterator[Chunk] = stream
        return _gathered([chunk async for chunk in chunks], stream)

    return asyncio.run(read())


def _whole_async(runner: Runner, request: Request) -> Read:
    async def read() -> Read:
        stream = await runner.asubmit(request)
        return _of_completion(await stream.aresult(), stream)

    return asyncio.run(read())


def _of_completion(done: Completion, stream: AnswerStream) -> Read:
    assert done.prompt_token_ids == tuple(stream.prompt_token_ids)
    assert done.usage == stream.usage
    return [_of_choice(choice) for choice in done.choices], stream


def _of_choice(choice: Choice) -> ReadChoice:
    return ReadChoice(
        choice.text,
        choice.reasoning,
        "".join(call.arguments for call in choice.tool_calls),
        [_facts_of(sample) for sample in choice.samples],
        choice.finish_reason,
        choice.stop_string,
        choice.places,
        _numbers(choice.embedding),
    )


def _facts_of(sample: Sample) -> tuple[object, ...]:
    """Return what two runs of one engine agree on."""
    return sample.token_id, sample.logprob is None, len(sample.top), sample.rank is None


def _numbers(vector: Any) -> list[float] | None:
    return None if vector is None else [float(number) for number in vector]


def _check_alike(choices: list[ReadChoice], expected: list[ReadChoice]) -> None:
    for one, other in zip(choices, expected, strict=True):
        assert (one.vector is None) == (other.vector is None)
        if one.vector is not None and other.vector is not None:
            np.testing.assert_allclose(one.vector, other.vector, atol=VECTOR_ATOL)
        assert replace(one, vector=None) == replace(other, vector=None)
