"""What the reader of an answer, which a tokenizer creates, must do."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import get_args

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.delta import Delta, reasoning_of, text_of
from vlmkit.types.message import Message
from vlmkit.types.prompt_options import PromptOptions, ReasoningEffort
from vlmkit_testing.contracts.examples import examples as contract_examples
from vlmkit_testing.contracts.tokenizer_subject import TokenizerSubject, read

THOUGHT = "why not, żółć 日本"
LONG = "It was a fox, and it ran over the hill to where nobody lived. " * 4

examples = settings(contract_examples, max_examples=60)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
spaced = st.lists(st.sampled_from((" ", "\n", "\t", "\r\n", "so", "日")), max_size=6).map("".join)
CONTINUED = "It was a fox, żółć, 日本 \n\n 👍 it ran. "


class TokenizerReaderContract(TokenizerSubject):
    """Text is streamed as decoded; reasoning and tool calls are separated from it."""

    @examples
    @given(text=texts)
    def test_streamed_text_equals_decoded_text(self, text: str) -> None:
        """The same text comes token by token, never half a character."""
        tokenizer = self.make()
        token_ids = tokenizer.encode(text)
        pieces = [text_of(deltas) for deltas in read(self._reader(), token_ids)]
        assert "".join(pieces) == tokenizer.decode(token_ids)
        if self.is_lossless and "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)

    @examples
    @given(text=spaced)
    def test_white_space_is_part_of_an_answer(self, text: str) -> None:
        """At its beginning, at its end, and alone; also if special tokens are shown."""
        tokenizer, prompt = self.make(), self._prompt(self._conversation())
        token_ids = tokenizer.encode(text)
        for shows_special in {False, "skip_special_tokens" in tokenizer.honours}:
            reader = tokenizer.reader(prompt, shows_special=shows_special)
            streamed = "".join(map(text_of, read(reader, token_ids)))
            assert streamed == tokenizer.decode(token_ids)

    @examples
    @given(data=st.data())
    def test_any_sampled_tokens_can_be_streamed(self, data: st.DataObject) -> None:
        """A model may generate anything: the reader never raises, and counts its tokens."""
        tokenizer = self.make()
        token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
        reader = self._reader()
        pieces = read(reader, token_ids)
        assert all(isinstance(delta, Delta) for deltas in pieces for delta in deltas)
        assert 0 <= reader.num_reasoning_tokens <= len(token_ids)
        assert all(isinstance(tokenizer.token_bytes(i), bytes) for i in token_ids)

    def test_two_readers_do_not_mix(self) -> None:
        """Each answer has its own, of one prompt, too: a request may ask for several answers."""
        tokenizer, prompt = self.make(), self._prompt(self._conversation())
        readers = [tokenizer.reader(prompt), tokenizer.reader(prompt)]
        token_ids = tokenizer.encode("Zażółć 👍")
        deltas: list[list[Delta]] = [[], []]
        for token_id in token_ids:
            for own, reader in zip(deltas, readers, strict=True):
                own.extend(reader.push(token_id))
        for own, reader in zip(deltas, readers, strict=True):
            assert text_of([*own, *reader.finish()]) == tokenizer.decode(token_ids)

    def test_an_answer_may_end_anywhere(self) -> None:
        """The end returns held-back text, such as a space or half a character."""
        tokenizer = self.make()
        token_ids = tokenizer.encode("so it is, Zażółć 👍 so ")
        for num in range(len(token_ids) + 1):
            streamed = "".join(map(text_of, read(self._reader(), token_ids[:num])))
            decoded = tokenizer.decode(token_ids[:num])
            if "\ufffd" not in decoded:
                assert streamed == decoded
            else:  # no text is taken back where an answer ends inside a character
                assert streamed.startswith(decoded.rstrip("\ufffd"))

    def test_text_is_streamed(self) -> None:
        """Only text that may still change is held back."""
        pieces = read(self._reader(), self.make().encode(LONG))
        assert sum(bool(text_of(deltas)) for deltas in pieces[:-1]) > len(pieces) // 4
        assert len(text_of(pieces[-1])) < len(LONG) // 4

    def test_special_tokens_are_no_part_of_the_text(self) -> None:
        """The end token is not part of the text."""
        tokenizer = self.make()
        said = tokenizer.encode("so it is")
        for token_id in tokenizer.eos_ids | tokenizer.banned_ids:
            streamed = read(self._reader(), [*said, token_id])
            assert "".join(map(text_of, streamed)) == tokenizer.decode(said)

    def test_special_tokens_are_shown_on_request(self) -> None:
        """Such as the end token; ordinary text is the same."""
        tokenizer = self._honouring("skip_special_tokens")
        prompt = self._prompt(self._conversation())
        said, end = tokenizer.encode("Zażółć 👍"), min(tokenizer.eos_ids)
        streamed = []
        for token_ids in (said, [*said, end]):
            reader = tokenizer.reader(prompt, shows_special=True)
            streamed.append("".join(map(text_of, read(reader, token_ids))))
        assert streamed[0] == tokenizer.decode(said)
        assert streamed[1].startswith(streamed[0])
        assert len(streamed[1]) > len(streamed[0])

    def test_each_special_token_has_an_id_of_its_own(self) -> None:
        """A plain text shows the spelling of each on request."""
        tokenizer = self._honouring("skip_special_tokens")
        prompt = Prompt(tuple(tokenizer.encode("once")), is_plain=True)
        silent = (i for i in range(tokenizer.vocab_size) if not tokenizer.decode([i]))
        readers = ((i, tokenizer.reader(prompt, shows_special=True)) for i in silent)
        shown = ["".join(map(text_of, read(reader, [i]))) for i, reader in readers]
        missing = set(self.special_texts()).difference(shown)
        assert not missing, "two special tokens have one id, or one is not shown"

    # Reasoning

    def test_reasoning_is_separated_from_text(self) -> None:
        """Without its marks; its tokens are counted, and those of the text are not.

        Also if special tokens are shown.
        """
        tokenizer, prompt = self.make(), self._prompt(self._conversation())
        thought, said = self._thought(), tokenizer.encode("so it is")
        for shows_special in {False, "skip_special_tokens" in tokenizer.honours}:
            reader = tokenizer.reader(prompt, shows_special=shows_special)
            deltas = [delta for found in read(reader, [*thought, *said]) for delta in found]
            assert (reasoning_of(deltas), text_of(deltas)) == (THOUGHT, "so it is")
            assert reader.num_reasoning_tokens == len(thought)

    def test_an_answer_may_end_within_its_reasoning(self) -> None:
        """If its length is limited, it has no text."""
        start, _ = self._marks()
        thought = [*start, *self.make().encode(THOUGHT)]
        reader = self._reader()
        deltas = [delta for found in read(reader, thought) for delta in found]
        assert (reasoning_of(deltas), text_of(deltas)) == (THOUGHT, "")
        assert reader.num_reasoning_tokens == len(thought)

    def test_reasoning_is_counted_while_it_streams(self) -> None:
        """The usage of a running request is right."""
        reader, counts = self._reader(), []
        for token_id in (thought := self._thought()):
            reader.push(token_id)
            counts.append(reader.num_reasoning_tokens)
        num_start = len(self._marks()[0])
        assert counts[num_start - 1 :] == list(range(num_start, len(thought) + 1))

    def test_text_alone_is_no_reasoning(self) -> None:
        """An answer without marks is text from the first token."""
        tokenizer, reader = self.make(), self._reader()
        streamed = [
            delta for deltas in read(reader, tokenizer.encode("so it is")) for delta in deltas
        ]
        assert reader.num_reasoning_tokens == 0
        assert not reasoning_of(streamed)

    def test_reasoning_that_the_prompt_began_goes_on(self) -> None:
        """If the template opens the reasoning, the prompt says so, and the answer needs no mark."""
        start, end = self._marks()
        opened = list(self._opened(tuple(start)))
        if not opened:
            pytest.skip("this model's template begins no reasoning")
        tokenizer = self.make()
        for prompt in opened:
            assert prompt.opens_reasoning
            thought, said = [*tokenizer.encode(THOUGHT), *end], tokenizer.encode("so it is")
            for reader in (tokenizer.reader(prompt), tokenizer.reader(prompt)):
                deltas = [delta for found in read(reader, [*thought, *said]) for delta in found]
                assert (reasoning_of(deltas), text_of(deltas)) == (THOUGHT, "so it is")
                assert reader.num_reasoning_tokens == len(thought)

    def test_a_prompt_without_an_answers_start_opens_no_reasoning(self) -> None:
        """No answer starts inside it, whatever effort is requested."""
        tokenizer = self._honouring("reasoning_effort")
        said, asked = Message.of("assistant", "it is so"), self._conversation()
        for effort in get_args(ReasoningEffort):
            for options, messages in (
                (PromptOptions(add_generation_prompt=False, reasoning_effort=effort), asked),
                (
                    PromptOptions(continue_final_message=True, reasoning_effort=effort),
                    [*asked, said],
                ),
            ):
                if set(options.asked) <= tokenizer.honours:
                    with contextlib.suppress(RequestError):  # some efforts a model does not have
                        prompt = tokenizer.prompt(messages, options=options)
                        assert not prompt.opens_reasoning

    def test_a_prompt_names_the_marks_of_reasoning(self) -> None:
        """The thinking budget needs their tokens, or else their spelling."""
        marks, tokenizer = self._marks(), self.make()
        prompt = tokenizer.prompt(self._conversation())
        if prompt.channels is not None:
            pytest.skip("this model has a channel for its reasoning")
        named = prompt.reasoning_marks
        assert named is not None
        for mark, token_ids in zip(named, marks, strict=True):
            if mark.token_id is not None:
                assert [mark.token_id] == list(token_ids)
            else:
                assert tokenizer.encode(mark.text) == list(token_ids)

    def test_the_continuation_of_a_plain_text_is_text(self) -> None:
        """Marks have a meaning in answers to conversations only."""
        tokenizer = self.make()
        prompt = Prompt(tuple(tokenizer.encode("once upon")), is_plain=True)
        start, end = self.reasoning_marks() or ((), ())
        token_ids = [*start, *tokenizer.encode(THOUGHT), *end, *tokenizer.encode("so")]
        reader = tokenizer.reader(prompt)
        deltas = [delta for found in read(reader, token_ids) for delta in found]
        assert text_of(deltas).lstrip() == tokenizer.decode(token_ids).lstrip()
        assert not reasoning_of(deltas)
        assert reader.num_reasoning_tokens == 0

    def test_a_continuation_joins_its_plain_text(self) -> None:
        """Both together are the text of all tokens, wherever the prompt and the answer end."""
        token_ids = self.make().encode(CONTINUED)
        for num, stop in itertools.combinations_with_replacement(range(1, len(token_ids) + 1), 2):
            self._check_continuation(token_ids, num, stop)

    @examples
    @given(text=texts | spaced, data=st.data())
    def test_any_plain_text_is_continued(self, text: str, data: st.DataObject) -> None:
        """From any of its tokens to any other."""
        token_ids = self.make().encode(text)
        num = data.draw(st.integers(0, len(token_ids)))
        self._check_continuation(token_ids, num, data.draw(st.integers(num, len(token_ids))))

    # Helpers

    def _check_continuation(self, token_ids: Sequence[int], num: int, stop: int) -> None:
        """Fail unless the first ``num`` tokens are continued by those before ``stop``."""
        tokenizer = self.make()
        whole, decoded = tokenizer.decode(token_ids), tokenizer.decode(token_ids[:stop])
        begun = tokenizer.decode(token_ids[:num])
        if "\ufffd" in whole or not whole.startswith(begun):
            return  # the prompt ends inside a character
        reader = tokenizer.reader(Prompt(tuple(token_ids[:num]), is_plain=True))
        joined = begun + "".join(map(text_of, read(reader, token_ids[num:stop])))
        if "\ufffd" not in decoded:
            assert joined == decoded, (token_ids[:num], token_ids[num:stop])
        else:  # no text is taken back where an answer ends inside a character
            assert joined.startswith(decoded.rstrip("\ufffd"))
            assert whole.startswith(joined.rstrip("\ufffd"))

    def _marks(self) -> tuple[Sequence[int], Sequence[int]]:
        marks = self.reasoning_marks()
        if marks is None:
            pytest.skip("this model does not think aloud")
        return marks

    def _thought(self) -> list[int]:
        start, end = self._marks()
        return [*start, *self.make().encode(THOUGHT), *end]

    def _opened(self, start: tuple[int, ...]) -> Iterator[Prompt]:
        """Yield prompts that open the reasoning: by a statement, or by their last token."""
        tokenizer, asked = self.make(), [PromptOptions()]
        if "reasoning_effort" in tokenizer.honours:
            efforts = get_args(ReasoningEffort)
            asked += [PromptOptions(reasoning_effort=effort) for effort in efforts]
        for options in asked:
            try:
                prompt = tokenizer.prompt(self._conversation(), options=options)
            except RequestError:  # some efforts a model does not have
                continue
            if prompt.opens_reasoning or prompt.token_ids[-len(start) :] == start:
                yield prompt
