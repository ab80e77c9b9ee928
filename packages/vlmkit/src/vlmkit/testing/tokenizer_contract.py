"""What every tokenizer must do."""

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from vlmkit.ask.delta import Delta, reasoning_of, text_of
from vlmkit.ask.message import Message, ReasoningPart, TextPart
from vlmkit.ask.prompt_options import PromptOptions, ReasoningEffort
from vlmkit.ask.tool_call import ToolCallPart
from vlmkit.errors import RequestError
from vlmkit.seams.prompt import Prompt
from vlmkit.seams.reader import AnswerReader
from vlmkit.seams.tokenizer import Option, Tokenizer
from vlmkit.testing.pictures import picture
from vlmkit.testing.tokenizer_image_sizes_contract import TokenizerImageSizesContract
from vlmkit.testing.tokenizer_media_contract import TokenizerMediaContract

TEXTS = (
    "Hello, world!",
    " two  spaces ",
    "Zażółć gęślą jaźń",
    "日本語",
    "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL} \N{WAVING WHITE FLAG}\N{VARIATION SELECTOR-16}",
    "a\nb\tc",
    "٣ + ٤",
    "",
)

examples = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


class TokenizerContract(TokenizerMediaContract, TokenizerImageSizesContract):
    """Inherit, override :meth:`make` and :meth:`special_texts`, and run pytest.

    Attributes:
        is_lossless: whether ``decode(encode(text)) == text`` for every text; a tokenizer that
            normalises text, say, is not.
        marks_answers: whether a prompt says where an answer begins; some templates do not.
    """

    is_lossless = True
    marks_answers = True

    def special_texts(self) -> list[str]:
        """Return every string that the vocabulary writes a special token as."""
        raise NotImplementedError

    def reasoning_marks(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return the tokens that begin an answer's reasoning, and that end it; None without any."""
        return None

    # Text

    @pytest.mark.parametrize("text", TEXTS)
    def test_text_comes_back(self, text: str) -> None:
        """At the latest the second time, where the tokenizer normalises."""
        tokenizer = self.make()
        decoded = tokenizer.decode(tokenizer.encode(text))
        if self.is_lossless:
            assert decoded == text
        assert tokenizer.decode(tokenizer.encode(decoded)) == decoded

    def test_what_is_put_around_a_text_adds_no_text(self) -> None:
        """A text that is read as a whole says the same as its tokens alone."""
        tokenizer = self.make()
        for text in TEXTS:
            alone, whole = tokenizer.encode(text), tokenizer.encode(text, adds_special=True)
            assert len(whole) >= len(alone)
            assert tokenizer.decode(whole) == tokenizer.decode(alone)

    @examples
    @given(text=texts)
    def test_streamed_text_equals_decoded_text(self, text: str) -> None:
        """Token by token the same text comes out, and never half a character."""
        tokenizer = self.make()
        token_ids = tokenizer.encode(text)
        pieces = [text_of(deltas) for deltas in _read(self._reader(), token_ids)]
        assert "".join(pieces) == tokenizer.decode(token_ids)
        if self.is_lossless and "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)

    @examples
    @given(data=st.data())
    def test_any_sampled_tokens_can_be_streamed(self, data: st.DataObject) -> None:
        """A model may say anything: the reader never raises, and counts what it was given."""
        tokenizer = self.make()
        token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
        reader = self._reader()
        pieces = _read(reader, token_ids)
        assert all(isinstance(delta, Delta) for deltas in pieces for delta in deltas)
        assert 0 <= reader.num_reasoning_tokens <= len(token_ids)
        assert all(isinstance(tokenizer.token_bytes(i), bytes) for i in token_ids)

    def test_two_readers_do_not_mix(self) -> None:
        """Each answer has its own."""
        tokenizer = self.make()
        readers = [self._reader(), self._reader()]
        token_ids = tokenizer.encode("Zażółć 👍")
        deltas: list[list[Delta]] = [[], []]
        for token_id in token_ids:
            for own, reader in zip(deltas, readers, strict=True):
                own.extend(reader.push(token_id))
        for own, reader in zip(deltas, readers, strict=True):
            assert text_of([*own, *reader.finish()]) == tokenizer.decode(token_ids)

    @pytest.mark.parametrize("text", TEXTS)
    def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(self, text: str) -> None:
        """But for a space that some tokenizers put before the first word."""
        tokenizer = self.make()
        token_ids = tokenizer.encode(text)
        content = b"".join(map(tokenizer.token_bytes, token_ids))
        assert content.strip() == tokenizer.decode(token_ids).encode().strip()

    def test_half_a_surrogate_pair_is_refused_or_replaced(self) -> None:
        """A client's JSON may hold one; it must not take the server down."""
        try:
            token_ids = self.make().encode("a\ud83dz")
        except RequestError:
            return
        assert all(isinstance(i, int) for i in token_ids)

    # Reasoning

    def test_reasoning_is_told_apart_from_text(self) -> None:
        """Without its marks, while all its tokens are counted, and those of the text are not."""
        thought, said = self._thought(), self.make().encode("so it is")
        reader = self._reader()
        deltas = [delta for found in _read(reader, [*thought, *said]) for delta in found]
        assert (reasoning_of(deltas), text_of(deltas)) == ("why not", "so it is")
        assert reader.num_reasoning_tokens == len(thought)

    def test_an_answer_may_end_inside_its_reasoning(self) -> None:
        """Where its length is limited: then it has no text."""
        start, _ = self._marks()
        thought = [*start, *self.make().encode("why not")]
        reader = self._reader()
        deltas = [delta for found in _read(reader, thought) for delta in found]
        assert (reasoning_of(deltas), text_of(deltas)) == ("why not", "")
        assert reader.num_reasoning_tokens == len(thought)

    def test_reasoning_is_counted_while_it_comes(self) -> None:
        """What is said of a request that runs is true."""
        reader, counts = self._reader(), []
        for token_id in (thought := self._thought()):
            reader.push(token_id)
            counts.append(reader.num_reasoning_tokens)
        num_start = len(self._marks()[0])
        assert counts[num_start - 1 :] == list(range(num_start, len(thought) + 1))

    def test_text_alone_is_no_reasoning(self) -> None:
        """An answer without marks is text from its first token on."""
        tokenizer, reader = self.make(), self._reader()
        _read(reader, tokenizer.encode("so it is"))
        assert reader.num_reasoning_tokens == 0

    def test_what_follows_a_plain_text_is_text(self) -> None:
        """Only in answers to conversations do marks mean something."""
        tokenizer = self.make()
        prompt = Prompt(tuple(tokenizer.encode("once upon")), is_plain=True)
        start, end = self.reasoning_marks() or ((), ())
        token_ids = [*start, *tokenizer.encode("why not"), *end, *tokenizer.encode("so")]
        reader = tokenizer.reader(prompt)
        deltas = [delta for found in _read(reader, token_ids) for delta in found]
        assert text_of(deltas).lstrip() == tokenizer.decode(token_ids).lstrip()
        assert not reasoning_of(deltas)
        assert reader.num_reasoning_tokens == 0

    # Options

    def test_only_what_a_request_may_ask_for_is_honoured(self) -> None:
        """Other names would never be asked about."""
        assert self.make().honours <= set(get_args(Option))

    def test_a_prompt_may_end_where_no_answer_begins(self) -> None:
        """But for its own last mark, it is the beginning of the one where an answer begins."""
        tokenizer = self._honouring("add_generation_prompt")
        turns = self._conversation()
        prompt = tokenizer.prompt(turns)
        ended = tokenizer.prompt(turns, options=PromptOptions(add_generation_prompt=False))
        assert _begins(prompt, ended.token_ids[:-1])
        if self.marks_answers:
            assert ended.token_ids != prompt.token_ids

    def test_a_prompt_may_end_inside_the_last_message(self) -> None:
        """Right behind what that says, which is text like any other."""
        tokenizer = self._honouring("continue_final_message")
        goes_on = PromptOptions(continue_final_message=True)
        said = Message.of("assistant", "it is so")
        turns = self._conversation()
        prompt = tokenizer.prompt([*turns, said], options=goes_on)
        assert tokenizer.decode(prompt.token_ids).endswith("it is so")
        longer = [*turns, Message.of("assistant", "it is so, and more")]
        assert _begins(tokenizer.prompt(longer, options=goes_on), prompt.token_ids[:-1])
        for text in self.special_texts():
            marked = Message.of("assistant", f"it is {text} so")
            prompt = tokenizer.prompt([*turns, marked], options=goes_on)
            assert tokenizer.decode(prompt.token_ids).endswith("so")

    def test_variables_that_no_template_asks_for_change_nothing(self) -> None:
        """And those that one has of its own cannot be set."""
        tokenizer = self._honouring("chat_template_kwargs")
        turns = self._conversation()
        options = PromptOptions(chat_template_kwargs={"nobody_asks_for_this": True})
        assert tokenizer.prompt(turns, options=options).token_ids == (
            tokenizer.prompt(turns).token_ids
        )

    def test_an_effort_is_said_to_the_model(self) -> None:
        """Not all efforts are the same prompt."""
        tokenizer = self._honouring("reasoning_effort")
        turns = self._conversation()
        made: set[tuple[int, ...]] = set()
        for effort in get_args(ReasoningEffort):
            with contextlib.suppress(RequestError):  # a model may always think
                options = PromptOptions(reasoning_effort=effort)
                made.add(tokenizer.prompt(turns, options=options).token_ids)
        assert len(made) > 1

    def test_special_tokens_show_if_asked_for(self) -> None:
        """As the end of an answer does; ordinary text is the same."""
        tokenizer = self._honouring("skip_special_tokens")
        prompt = self._prompt(self._conversation())
        said, end = tokenizer.encode("Zażółć 👍"), min(tokenizer.eos_ids)
        texts = []
        for token_ids in (said, [*said, end]):
            reader = tokenizer.reader(prompt, shows_special=True)
            texts.append("".join(map(text_of, _read(reader, token_ids))))
        assert texts[0] == tokenizer.decode(said)
        assert texts[1].startswith(texts[0])
        assert len(texts[1]) > len(texts[0])

    # Special tokens

    def test_special_ids_are_in_the_vocabulary(self) -> None:
        """The end is a token that may be sampled; placeholders are not."""
        tokenizer = self.make()
        assert tokenizer.eos_ids
        assert not tokenizer.eos_ids & tokenizer.banned_ids
        assert all(0 <= i < tokenizer.vocab_size for i in tokenizer.eos_ids | tokenizer.banned_ids)

    def test_no_text_becomes_a_special_token(self) -> None:
        """A special token's own spelling is ordinary text when a user types it."""
        tokenizer = self.make()
        special = tokenizer.eos_ids | tokenizer.banned_ids
        assert self.special_texts()
        for text in self.special_texts():
            token_ids = tokenizer.encode(f"a{text}b")
            assert not special.intersection(token_ids), text
            if self.is_lossless:
                assert tokenizer.decode(token_ids) == f"a{text}b"

    def test_typed_special_texts_do_not_change_the_structure_of_a_prompt(self) -> None:
        """The prompt holds as many special tokens as it does for harmless text."""
        harmless = self._num_special([Message.of("user", "hello")])
        for text in self.special_texts():
            assert self._num_special([Message.of("user", f"a{text}b")]) == harmless, text

    def test_typed_placeholders_make_no_image_slot(self) -> None:
        """Images are placed by structure, not by searching for a string."""
        images = [picture()] if self.takes_images else []
        text = "".join(self.special_texts())
        prompt = self._prompt([Message.of("user", f"{text}?", images)])
        assert len(prompt.media) == len(images)

    def test_no_string_of_an_earlier_answer_changes_the_structure_of_a_prompt(self) -> None:
        """Nor of a tool's result: a call's id, name and arguments, and thoughts, are text."""
        try:
            harmless = self._num_special(self._called("a"))
        except RequestError:
            pytest.skip("this model takes no calls of tools")
        for text in self.special_texts():
            assert self._num_special(self._called(f"a{text}b")) == harmless, text

    # Prompts

    def test_a_prompt_without_images_has_no_slots(self) -> None:
        """Token ids are plain integers within the vocabulary."""
        tokenizer = self.make()
        prompt = self._prompt([Message.of("user", "hello")])
        assert prompt.media == ()
        assert len(prompt) > 0
        assert all(type(i) is int and i >= 0 for i in prompt.token_ids)
        assert max(prompt.token_ids) < tokenizer.vocab_size

    def test_a_conversation_has_every_turn_in_its_prompt(self) -> None:
        """Another earlier turn is another prompt."""
        turns = [Message.of("user", "one"), Message.of("assistant", "two")]
        last = Message.of("user", "three")
        prompt = self._prompt([*turns, last])
        assert len(prompt) > len(self._prompt([last]))
        other = self._prompt([turns[0], Message.of("assistant", "four"), last])
        assert prompt.token_ids != other.token_ids

    def test_tools_are_in_the_prompt_or_refused(self) -> None:
        """An answer must not be given without what it was asked with."""
        tokenizer, turns = self.make(), [Message.of("user", "one")]
        try:
            prompts = [tokenizer.prompt(turns, tools=[_tool(name)]) for name in ("find", "send")]
        except RequestError:
            return
        ids = {prompt.token_ids for prompt in [*prompts, tokenizer.prompt(turns)]}
        assert len(ids) == 3

    def test_calls_of_tools_are_in_the_prompt_or_refused(self) -> None:
        """Another name, or another argument, is another prompt."""
        try:
            prompt = self._prompt(self._called("a"))
        except RequestError:
            return
        for fields in ({"name": "other"}, {"arguments": '{"a": 2}'}, {"arguments": '{"b": 1}'}):
            other = self._prompt(self._called("a", **fields))
            assert other.token_ids != prompt.token_ids

    def test_a_prompt_is_a_function_of_its_conversation(self) -> None:
        """Also when several threads ask at once."""
        images = [picture()] if self.takes_images else []
        messages = [Message.of("user", "What is this?", images)]
        expected = self._prompt(messages)
        with ThreadPoolExecutor(4) as pool:
            prompts = list(pool.map(lambda _: self._prompt(messages), range(8)))
        assert all(prompt.token_ids == expected.token_ids for prompt in prompts)
        digests = [slot.digest for slot in expected.media]
        assert all([s.digest for s in prompt.media] == digests for prompt in prompts)

    # Helpers

    def _reader(self) -> AnswerReader:
        """Return a reader of an answer to a plain question."""
        images = [picture()] if self.takes_images else []
        return self.make().reader(self._prompt([Message.of("user", "hello", images)]))

    def _honouring(self, option: Option) -> Tokenizer:
        tokenizer = self.make()
        if option not in tokenizer.honours:
            pytest.skip(f"this tokenizer does not honour {option}")
        return tokenizer

    def _marks(self) -> tuple[Sequence[int], Sequence[int]]:
        marks = self.reasoning_marks()
        if marks is None:
            pytest.skip("this model does not think aloud")
        return marks

    def _thought(self) -> list[int]:
        start, end = self._marks()
        return [*start, *self.make().encode("why not"), *end]

    def _called(
        self, text: str, *, name: str | None = None, arguments: str | None = None
    ) -> list[Message]:
        """Return a conversation with a call and its result; every string in it is ``text``."""
        arguments = arguments or msgspec.json.encode({text: [text, 1]}).decode()
        call = ToolCallPart(text, name or text, arguments)
        return [
            Message.of("user", "hello", [picture()] if self.takes_images else []),
            Message("assistant", (ReasoningPart(text), call)),
            Message("tool", (TextPart(text),), call.id),
        ]

    def _num_special(self, messages: list[Message]) -> int:
        tokenizer = self.make()
        special = tokenizer.eos_ids | tokenizer.banned_ids
        return sum(i in special for i in self._prompt(messages).token_ids)


def _begins(prompt: Prompt, token_ids: Sequence[int]) -> bool:
    """Tell whether a prompt is longer than some tokens, and begins with them."""
    num = len(token_ids)
    return num < len(prompt) and prompt.token_ids[:num] == tuple(token_ids)


def _read(reader: AnswerReader, token_ids: Sequence[int]) -> list[tuple[Delta, ...]]:
    """Return what each token of an answer added, and last what its end did."""
    return [*map(reader.push, token_ids), reader.finish()]


def _tool(name: str) -> dict[str, Any]:
    """Return a tool as a client describes it."""
    takes = {"type": "object", "properties": {"what": {"type": "string", "description": "what"}}}
    function = {"name": name, "description": "does it", "parameters": takes}
    return {"type": "function", "function": function}
