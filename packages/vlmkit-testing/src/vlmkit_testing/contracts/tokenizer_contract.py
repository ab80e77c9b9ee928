"""What every tokenizer must do."""

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import Option, Tokenizer
from vlmkit.types.delta import text_of
from vlmkit.types.message import Message, TextPart
from vlmkit.types.prompt_options import PromptOptions, ReasoningEffort
from vlmkit_testing.contracts.tokenizer_calls_contract import TokenizerCallsContract
from vlmkit_testing.contracts.tokenizer_large_contract import TokenizerLargeContract
from vlmkit_testing.contracts.tokenizer_media_contract import TokenizerMediaContract
from vlmkit_testing.contracts.tokenizer_prompt_contract import TokenizerPromptContract
from vlmkit_testing.contracts.tokenizer_reader_contract import TokenizerReaderContract
from vlmkit_testing.contracts.tokenizer_subject import read, tool

TEXTS = (
    "Hello, world!",
    " two  spaces ",
    "Zażółć gęślą jaźń",
    "日本語",
    "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL} \N{WAVING WHITE FLAG}\N{VARIATION SELECTOR-16}",
    "a\nb\tc",
    "٣ + ٤",
    "e\N{COMBINING ACUTE ACCENT} \N{LATIN SMALL LETTER E WITH ACUTE} ﬁ",
    "\N{ZERO WIDTH NO-BREAK SPACE}at the beginning",
    "a\r\nb\r",
    "a\0b",
    "it is n't , or is it ?",
    "\n\n  it\n",
    "",
)
SWITCH_S = 1e-5  # after which another thread may run
NUM_ROUNDS = 16


class TokenizerContract(
    TokenizerReaderContract,
    TokenizerCallsContract,
    TokenizerPromptContract,
    TokenizerMediaContract,
    TokenizerLargeContract,
):
    """Inherit, override :meth:`make` and :meth:`special_texts`, and run pytest.

    Further attributes describe the model:
    :class:`vlmkit_testing.contracts.tokenizer_subject.TokenizerSubject`.
    """

    # Text

    @pytest.mark.parametrize("text", TEXTS)
    def test_decoding_restores_the_text(self, text: str) -> None:
        """After one round trip at the latest, if the tokenizer normalises."""
        tokenizer = self.make()
        decoded = tokenizer.decode(tokenizer.encode(text))
        if self.is_lossless:
            assert decoded == text
        assert tokenizer.decode(tokenizer.encode(decoded)) == decoded

    def test_a_space_at_the_end_of_a_text_stays(self) -> None:
        """Also if the tokenizer normalises: a continuation does not start with another space."""
        tokenizer = self.make()
        said = tokenizer.encode("so it is ")
        assert tokenizer.decode(said).endswith("is ")
        assert b"".join(map(tokenizer.token_bytes, said)).endswith(b"is ")

    def test_a_long_text_is_never_cut(self) -> None:
        """The pipeline, which knows the model's length, refuses long prompts."""
        tokenizer, text = self.make(), "It was a fox. " * 3000 + "The end"
        assert tokenizer.decode(tokenizer.encode(text)).endswith("The end")
        decoded = tokenizer.decode(self._prompt([self._asked(text)]).token_ids)
        assert decoded.count("fox") == 3000
        assert "The end" in decoded

    def test_tokens_around_a_text_add_no_text(self) -> None:
        """Decoding the whole prompt gives the same text."""
        tokenizer = self.make()
        for text in TEXTS:
            alone, whole = tokenizer.encode(text), tokenizer.encode(text, adds_special=True)
            assert len(whole) >= len(alone)
            assert tokenizer.decode(whole) == tokenizer.decode(alone)

    def test_no_tokens_are_added_around_a_text_by_default(self) -> None:
        """Models are not trained on a start token within a prompt."""
        assert self.make().encode("") == []

    def test_the_tokens_of_a_text_do_not_depend_on_earlier_calls(self) -> None:
        """With and without tokens around it, in any order, and after texts that are refused.

        The texts have the same first and the same last word.
        """
        tokenizer = self.make()
        ends: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}
        for number, order in enumerate(itertools.product((False, True), repeat=3)):
            text, found = f"a {number} a", dict[bool, list[int]]()
            for adds_special in (*order, *order[::-1], not order[0]):
                token_ids = tokenizer.encode(text, adds_special=adds_special)
                assert token_ids == found.setdefault(adds_special, list(token_ids))
                ends[adds_special].add((token_ids[0], token_ids[-1]))
                with contextlib.suppress(RequestError):
                    tokenizer.encode("\ud83d", adds_special=not adds_special)
                self._prompt(self._conversation())
        assert tokenizer.encode("") == [], "adds_special of an earlier call takes effect"
        assert len(ends[False]) == len(ends[True]) == 1, "adds_special of another call takes effect"

    @pytest.mark.parametrize("text", TEXTS)
    def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(self, text: str) -> None:
        """Except for a space that some tokenizers add before the first word."""
        tokenizer = self.make()
        token_ids = tokenizer.encode(text)
        content = b"".join(map(tokenizer.token_bytes, token_ids))
        decoded = tokenizer.decode(token_ids).encode()
        assert content in (decoded, b" " + decoded)

    def test_half_a_surrogate_pair_is_refused_or_replaced(self) -> None:
        """A client's JSON may contain one; it must not crash the server."""
        try:
            token_ids = self.make().encode("a\ud83dz")
        except RequestError:
            return
        assert all(isinstance(i, int) for i in token_ids)

    def test_every_token_of_a_text_is_in_the_vocabulary(self) -> None:
        """As a plain integer, and not banned, so that a sampler may choose it."""
        tokenizer = self.make()
        for text in TEXTS:
            token_ids = tokenizer.encode(text)
            assert all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in token_ids)
            assert not self._special_ids().intersection(token_ids)

    def test_every_token_of_the_vocabulary_can_be_decoded(self) -> None:
        """A model may generate any of them, the first and the last, too."""
        tokenizer = self.make()
        last = tokenizer.vocab_size - 1
        for token_id in {0, last // 2, last, *self._special_ids()}:
            assert isinstance(tokenizer.decode([token_id]), str)
            assert isinstance(tokenizer.token_bytes(token_id), bytes)

    def test_the_last_id_of_the_vocabulary_is_that_of_a_token(self) -> None:
        """It has a text: a special token's spelling is shown on request."""
        tokenizer = self._honouring("skip_special_tokens")
        last, prompt = tokenizer.vocab_size - 1, Prompt(tuple(tokenizer.encode("a")), is_plain=True)
        shown = read(tokenizer.reader(prompt, shows_special=True), [last])
        assert tokenizer.token_bytes(last) or "".join(map(text_of, shown))

    # Special tokens

    def test_special_ids_are_in_the_vocabulary(self) -> None:
        """End tokens may be sampled; placeholders may not."""
        tokenizer = self.make()
        assert tokenizer.eos_ids
        assert isinstance(tokenizer.eos_ids, frozenset)
        assert isinstance(tokenizer.banned_ids, frozenset)
        assert not tokenizer.eos_ids & tokenizer.banned_ids
        assert all(0 <= i < tokenizer.vocab_size for i in tokenizer.eos_ids | tokenizer.banned_ids)

    def test_decoded_text_is_without_special_tokens(self) -> None:
        """Neither end tokens nor those between turns."""
        tokenizer = self.make()
        said = tokenizer.encode("so it is")
        for token_id in self._special_ids():
            assert tokenizer.decode([*said, token_id]) == tokenizer.decode(said)
        decoded = tokenizer.decode(self._prompt(self._conversation()).token_ids)
        assert not [text for text in self.special_texts() if text in decoded]

    def test_no_text_becomes_a_special_token(self) -> None:
        """A special token's spelling is ordinary text if a user types it.

        Also between the tokens that the tokenizer puts around a whole text.
        """
        tokenizer = self.make()
        assert self.special_texts()
        around = self._special_in(tokenizer.encode("ab", adds_special=True))
        for text in self.special_texts():
            token_ids = tokenizer.encode(f"a{text}b")
            whole = tokenizer.encode(f"a{text}b", adds_special=True)
            assert not self._special_in(token_ids), text
            assert self._special_in(whole) == around, text
            if self.is_lossless:
                assert tokenizer.decode(token_ids) == tokenizer.decode(whole) == f"a{text}b"

    def _special_in(self, token_ids: Sequence[int]) -> list[int]:
        """Return the special tokens among some tokens, in order."""
        return [token_id for token_id in token_ids if token_id in self._special_ids()]

    # Options

    def test_only_known_options_are_honoured(self) -> None:
        """Other names would never be looked up."""
        assert self.make().honours <= set(get_args(Option))

    def test_a_prompt_may_end_where_no_answer_begins(self) -> None:
        """Without its last special token, it is a prefix of the prompt with an answer's start."""
        tokenizer = self._honouring("add_generation_prompt")
        turns = self._conversation()
        prompt = tokenizer.prompt(turns)
        ended = tokenizer.prompt(turns, options=PromptOptions(add_generation_prompt=False))
        assert _begins(prompt, ended.token_ids[:-1])
        if self.marks_answers:
            assert ended.token_ids != prompt.token_ids

    def test_a_prompt_may_end_within_the_last_message(self) -> None:
        """Directly after its text, which is ordinary text."""
        tokenizer = self._honouring("continue_final_message")
        goes_on = PromptOptions(continue_final_message=True)
        said = Message.of("assistant", "it is so")
        turns = self._conversation()
        prompt = tokenizer.prompt([*turns, said], options=goes_on)
        assert tokenizer.decode(prompt.token_ids).endswith("it is so")
        assert _begins(tokenizer.prompt([*turns, said]), prompt.token_ids[:-1])
        assert not self._special_ids().intersection(prompt.token_ids[-1:])
        longer = [*turns, Message.of("assistant", "it is so, and more")]
        assert _begins(tokenizer.prompt(longer, options=goes_on), prompt.token_ids[:-1])
        for text in ("it is żółć", "日本", "so, {so}"):
            given = tokenizer.decode(tokenizer.encode(text)).strip()
            halves = (TextPart(text[:2]), TextPart(text[2:]))
            for parts in ((TextPart(text),), halves) if self.keeps_spaces else ((TextPart(text),),):
                prompt = tokenizer.prompt([*turns, Message("assistant", parts)], options=goes_on)
                assert tokenizer.decode(prompt.token_ids).endswith(given)
        for text in self.special_texts():
            marked = Message.of("assistant", f"it is {text} so")
            prompt = tokenizer.prompt([*turns, marked], options=goes_on)
            assert tokenizer.decode(prompt.token_ids).endswith("so")
        for space in (" ", "\n\n") if self.keeps_spaces else ():
            spaced = Message.of("assistant", f"it is so{space}")
            prompt = tokenizer.prompt([*turns, spaced], options=goes_on)
            assert tokenizer.decode(prompt.token_ids).endswith(f"so{space}")

    def test_unused_template_variables_change_nothing(self) -> None:
        """The template's own variables cannot be set."""
        tokenizer = self._honouring("chat_template_kwargs")
        turns = self._conversation()
        options = PromptOptions(chat_template_kwargs={"nobody_asks_for_this": True})
        assert tokenizer.prompt(turns, options=options).token_ids == (
            tokenizer.prompt(turns).token_ids
        )
        if "reasoning_effort" in tokenizer.honours:
            both = replace(options, reasoning_effort="high")
            alone = PromptOptions(reasoning_effort="high")
            assert tokenizer.prompt(turns, options=both).token_ids == (
                tokenizer.prompt(turns, options=alone).token_ids
            )

    def test_the_reasoning_effort_changes_the_prompt(self) -> None:
        """Different efforts give different prompts."""
        tokenizer = self._honouring("reasoning_effort")
        turns = self._conversation()
        made: set[tuple[int, ...]] = set()
        for effort in get_args(ReasoningEffort):
            with contextlib.suppress(RequestError):  # a model may always think
                options = PromptOptions(reasoning_effort=effort)
                made.add(tokenizer.prompt(turns, options=options).token_ids)
        assert len(made) > 1

    # Threads

    def test_a_prompt_is_a_function_of_its_conversation(self) -> None:
        """Also in concurrent threads."""
        tokenizer, asked = self.make(), [[self._asked(f"What is this? {i}")] for i in range(4)]
        expected = [_identity(tokenizer.prompt(messages)) for messages in asked]
        assert len(set(expected)) == len(asked)
        with ThreadPoolExecutor(4) as pool, _frequent_switches():
            prompts = list(pool.map(tokenizer.prompt, asked * NUM_ROUNDS))
        assert [_identity(prompt) for prompt in prompts] == expected * NUM_ROUNDS

    def test_every_method_may_run_in_several_threads(self) -> None:
        """Each gets its own tokens, texts, tools and answers."""
        tokenizer, texts = self.make(), [f"{i} foxes, żółć! " * (9 + i) for i in range(4)]
        ids = [tokenizer.encode(text) for text in texts]
        tried: list[list[Callable[[], object]]] = [
            [partial(tokenizer.encode, text, adds_special=True) for text in texts],
            [partial(tokenizer.decode, each) for each in ids],
            [partial(self._bytes, tokenizer, each) for each in ids],
            [partial(self._read, tokenizer, each) for each in ids],
            [partial(self._offered, tokenizer, number) for number in range(4)],
        ]
        for works in tried:
            expected, start = [work() for work in works], threading.Barrier(len(works))

            def run(work: Callable[[], object], start: threading.Barrier = start) -> list[object]:
                start.wait()
                return [work() for _ in range(NUM_ROUNDS)]

            with ThreadPoolExecutor(len(works)) as pool, _frequent_switches():
                made = list(pool.map(run, works))
            assert made == [[each] * NUM_ROUNDS for each in expected]

    def _bytes(self, tokenizer: Tokenizer, token_ids: Sequence[int]) -> bytes:
        """Return the bytes of some tokens."""
        return b"".join(map(tokenizer.token_bytes, token_ids))

    def _read(self, tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
        """Return the text of an answer."""
        prompt = Prompt(tuple(tokenizer.encode("once")), is_plain=True)
        return "".join(map(text_of, read(tokenizer.reader(prompt), token_ids)))

    def _offered(self, tokenizer: Tokenizer, number: int) -> object:
        """Return the prompt and the tools of a conversation with one tool, if it is taken."""
        try:
            prompt = tokenizer.prompt(self._conversation(), tools=[tool(f"find{number}")])
        except RequestError:
            return None
        return prompt.token_ids, prompt.calling and list(prompt.calling.tools)


@contextlib.contextmanager
def _frequent_switches() -> Iterator[None]:
    """Make threads switch so often that they interleave everywhere."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def _identity(prompt: Prompt) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """Return what distinguishes prompts."""
    return prompt.token_ids, tuple(slot.digest for slot in prompt.media)


def _begins(prompt: Prompt, token_ids: Sequence[int]) -> bool:
    """Return whether some tokens are a proper prefix of a prompt."""
    num = len(token_ids)
    return num < len(prompt) and prompt.token_ids[:num] == tuple(token_ids)
