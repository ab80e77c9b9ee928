"""What every runner must do: facts, answers, prompts, and requests that it refuses."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from vlmkit.errors import QueueFull, RequestError
from vlmkit.interfaces.runner import CONSTRAINT, Runner
from vlmkit.kit.runner_tokens import adetokenize, token_table
from vlmkit.types.completion import Chunk
from vlmkit.types.constraint import OneOf
from vlmkit.types.demand import Demand
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.wire.codec import WIRE
from vlmkit_testing.contracts.runner_subject import RunnerSubject, gathered, token_ids_of

DECISION_S = 0.1  # an engine begins a request within it, if one was queued
NEVER_WRITTEN, MAX_HELD_CHARS = "\N{SNOWMAN}", 32


class RunnerAnswersContract(RunnerSubject):
    """The part of the contract about facts and answers."""

    def test_its_facts_can_be_serialized(self) -> None:
        """A server may learn them from another process, before any request."""
        with self._runner() as runner:
            facts = runner.facts
            runner.submit(self.request()).result()
            assert runner.facts == facts
            assert WIRE.decode(WIRE.encode(facts)) == facts
            assert facts.modalities[0] == "text"
            assert facts.limits.max_sequence_tokens > 0
            assert facts.eos_ids, "no token ends an answer"

    def test_its_facts_name_the_tokens_that_end_an_answer(self) -> None:
        """An answer that ends by itself ends with one of them."""
        with self._runner() as runner:
            asked = self.request(runner.facts.limits.max_sequence_tokens // 2, ignore_eos=False)
            choice = runner.submit(asked).result().choices[0]
            if choice.finish_reason != "stop":
                pytest.skip("its answer does not end by itself")
            assert choice.token_ids[-1] in runner.facts.eos_ids

    def test_an_answer_is_the_same_however_it_is_read(self) -> None:
        """As a whole or in chunks, in async code or not."""
        request = self.request(n=2)

        async def read(runner: Runner) -> list[list[list[int]]]:
            lots = await runner.asubmit(request)
            chunks = []
            while lot := await lots.next_chunks():
                chunks += lot
            done = await (await runner.asubmit(request)).aresult()
            each = [chunk async for chunk in await runner.asubmit(request)]
            return [gathered(chunks), token_ids_of(done), gathered(each)]

        with self._runner() as runner:
            stream = runner.submit(request)
            assert stream.num_choices == 2
            assert len(stream.prompt_token_ids) == stream.usage.prompt_tokens
            done = stream.result()
            assert tuple(stream.prompt_token_ids) == done.prompt_token_ids
            whole = token_ids_of(done)
            assert [len(ids) for ids in whole] == [6, 6]
            assert stream.usage.completion_tokens == 12
            assert list(stream.reasons) == ["length", "length"]
            assert gathered(runner.submit(request)) == whole
            assert asyncio.run(read(runner)) == [whole] * 3

    def test_tokens_whose_text_is_held_back_are_delivered(self) -> None:
        """A stop string may begin in the text; chunks then have tokens and no text."""

        async def read(runner: Runner, request: Request) -> list[Chunk]:
            stream, chunks = await runner.asubmit(request), list[Chunk]()
            while batch := await stream.next_chunks():
                chunks += batch
            return chunks

        with self._runner() as runner:
            whole = runner.submit(self.request()).result().choices[0]
            held = whole.text.strip()[:MAX_HELD_CHARS]
            if not held:
                pytest.skip("its answer has no text: override request()")
            request = self.request(stop=(f"{held}{NEVER_WRITTEN}",))
            for chunks in (list(runner.submit(request)), asyncio.run(read(runner, request))):
                assert [s.token_id for chunk in chunks for s in chunk.samples] == whole.token_ids
                assert "".join(chunk.text for chunk in chunks) == whole.text

    def test_usage_and_timings_grow_with_the_answer(self) -> None:
        """Usage, timings and finish reasons, while it runs and at the end."""
        with self._runner() as runner:
            stream = self._endless(runner)
            num_read = 0
            for chunk in stream:
                num_read += len(chunk.samples)
                assert stream.usage.completion_tokens >= num_read
                assert not list(stream.reasons)
                if num_read >= 8:
                    break
            timings = stream.timings
            assert timings.began_s > 0
            assert min(timings.queue_s, timings.first_token_s, timings.decode_s) >= 0
            whole = runner.submit(self.request())
            done = whole.result()
            assert whole.usage == done.usage
            assert done.timings.prompt_s >= 0
            assert done.timings.first_token_s + done.timings.decode_s > 0

    def test_its_tokens_have_the_bytes_of_its_texts(self) -> None:
        """Log-probabilities are reported with them."""
        with self._runner() as runner:
            ends = runner.facts.eos_ids
            choice = runner.submit(self.request()).result().choices[0]
            tokens = [runner.token_bytes(i) for i in choice.token_ids if i not in ends]
            said = b"".join(tokens).decode(errors="replace")
            assert said.strip() == choice.text.strip()

    def test_its_token_table_has_the_bytes_of_its_tokens(self) -> None:
        """Another process gets them at once, so that no token needs a call of its own."""
        with self._runner() as runner:
            table = token_table(runner)
            assert len(table) >= runner.facts.limits.vocab_size
            last = runner.facts.limits.vocab_size - 1
            sampled = runner.submit(self.request()).result().choices[0].token_ids
            for token_id in {*sampled, *runner.facts.eos_ids, 0, last // 2, last}:
                assert table[token_id] == runner.token_bytes(token_id)

    def test_tokens_have_the_same_text_in_an_event_loop(self) -> None:
        """adetokenize() returns and refuses what detokenize() does."""
        with self._runner() as runner:
            ids = runner.submit(self.request()).result().choices[0].token_ids
            assert asyncio.run(adetokenize(runner, ids)) == runner.detokenize(ids)
            beyond = [*ids, runner.facts.limits.vocab_size]
            with pytest.raises(RequestError):
                asyncio.run(adetokenize(runner, beyond))

    def test_a_prompt_can_be_tokenized_without_an_answer(self) -> None:
        """Its tokens agree with the usage of an answer, and may be sent as a prompt."""
        plain = Request(text="Once upon a time", task="embed")

        async def counted(runner: Runner, request: Request) -> PromptTokens:
            return await runner.atokenize(request)

        with self._runner() as runner:
            request = self.request()
            tokenized = asyncio.run(counted(runner, request))
            stream = runner.submit(request)
            stream.result()
            assert len(tokenized.token_ids) == stream.usage.prompt_tokens
            assert tokenized.image_tokens == ()
            ids = asyncio.run(counted(runner, plain)).token_ids
            assert asyncio.run(counted(runner, replace(plain, text=None, token_ids=ids))) == (
                PromptTokens(ids)
            )
            assert runner.detokenize(ids).strip() == plain.text
            assert runner.detokenize([*ids, *runner.facts.eos_ids]).strip() == plain.text
            with pytest.raises(RequestError):
                asyncio.run(counted(runner, Request()))

    def test_a_token_beyond_the_vocabulary_is_refused(self) -> None:
        """Also beside known tokens."""
        with self._runner() as runner:
            ids = runner.submit(self.request()).result().choices[0].token_ids
            for beside in (-1, runner.facts.limits.vocab_size):
                with pytest.raises(RequestError):
                    runner.detokenize([*ids, beside])

    def test_a_prompt_beyond_the_context_is_counted_and_not_answered(self) -> None:
        """It is not truncated, which would answer another prompt."""

        async def counted(runner: Runner, request: Request) -> int:
            return len((await runner.atokenize(request)).token_ids)

        async def accepted(runner: Runner, request: Request) -> None:
            await runner.asubmit(request)

        with self._runner() as runner:
            most = runner.facts.limits.max_sequence_tokens
            ids = runner.submit(self.request()).result().choices[0].token_ids
            plain = [i for i in ids if i not in runner.facts.eos_ids][:1]
            asked = Request(token_ids=plain * (most + 1), params=self.request().params)
            assert asyncio.run(counted(runner, asked)) == most + 1
            with pytest.raises(RequestError):
                runner.submit(asked).result()
            with pytest.raises(RequestError):
                asyncio.run(accepted(runner, asked))

    def test_a_wrong_request_is_refused_and_harms_no_other(self) -> None:
        """The error comes at once if the caller waits for acceptance."""

        async def refused(runner: Runner) -> None:
            with pytest.raises(RequestError):
                await runner.asubmit(Request())

        with self._runner() as runner:
            running = runner.submit(self.request())
            with pytest.raises(RequestError):
                runner.submit(Request()).result()
            asyncio.run(refused(runner))
            assert len(running.result().choices[0].token_ids) == 6

    def test_admission_sees_the_demand_and_may_refuse(self) -> None:
        """It runs once, before any computation; a refused request leaves nothing behind.

        The caller gets the error of its own decision, although the runner may be another process.
        """
        demands: list[Demand] = []

        class NotNow(QueueFull):
            """An error that only the caller knows."""

        def refuse(_: Demand) -> None:
            raise NotNow("not now")

        async def refused(runner: Runner, request: Request) -> None:
            with pytest.raises(NotNow):
                await runner.asubmit(request, refuse)

        with self._runner() as runner:
            request = self.request(n=2)
            stream = runner.submit(request, demands.append)
            stream.result()
            assert demands == [Demand(stream.usage.prompt_tokens, (), 12, 2)]
            asyncio.run(refused(runner, request))
            with pytest.raises(NotNow):
                runner.submit(request, refuse).result()
            assert self._eventually(lambda: not self._num_open(runner))

    def test_a_refused_request_is_never_computed(self) -> None:
        """However long the decision takes: its answer has no reader, and would not end."""

        class NotNow(QueueFull):
            """An error that only the caller knows."""

        def refuse(_: Demand) -> None:
            time.sleep(DECISION_S)
            raise NotNow("not now")

        with self._runner() as runner:
            asked = self.request(runner.facts.limits.max_sequence_tokens // 2)
            with pytest.raises(NotNow):
                runner.submit(asked, refuse).result()
            assert self._eventually(lambda: not self._num_open(runner))

    def test_reasons_are_in_the_order_in_which_the_choices_end(self) -> None:
        """Some choices draw a stop token before others reach their length."""
        with self._runner() as runner:
            if {"logit_bias", "temperature"} & runner.facts.sampler.ignores:
                pytest.skip("its sampler has no bias or no temperature")
            ids, found = self._ordinary_ids(runner)[-2:], set[tuple[str, ...]]()
            drawn: Any = {
                "n": 4,
                "temperature": 1.0,
                "logit_bias": dict.fromkeys(ids, 100.0),
                "stop_token_ids": ids[:1],
            }
            for seed in range(6):
                stream = runner.submit(self.request(2, **drawn | {"seed": seed}))
                ended = [chunk.finish_reason for chunk in stream if chunk.finish_reason]
                assert len(ended) == 4
                assert list(stream.reasons) == ended
                found.add(tuple(ended))
            if len(found) == 1:
                pytest.skip("its choices end alike: override request() for tokens of like logits")

    def test_usage_counts_every_token_of_an_answer(self) -> None:
        """However many a chunk has: all scores of a text may come at once."""
        with self._runner() as runner:
            ids = self._ordinary_ids(runner)
            scored = Request(token_ids=ids, task="score", continuations=[ids * 3, ids[:1]])
            try:
                stream = runner.submit(scored)
                done = stream.result()
            except RequestError:
                pytest.skip("it scores nothing")
            num_scored = [len(choice.samples) for choice in done.choices]
            assert num_scored == [3 * len(ids), 1]
            assert stream.usage.completion_tokens == done.usage.completion_tokens == sum(num_scored)

    def test_a_constraint_is_enforced_or_refused(self) -> None:
        """As the facts state; a constraint is never ignored."""
        asked = self.request(16, ignore_eos=False)
        with self._runner() as runner:
            request = replace(asked, constraint=OneOf(("a", "b")))
            if CONSTRAINT in runner.facts.options:
                assert runner.submit(request).result().choices[0].text in ("a", "b")
                return
            with pytest.raises(RequestError):
                runner.submit(request).result()
