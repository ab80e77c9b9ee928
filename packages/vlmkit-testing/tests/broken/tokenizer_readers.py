"""Tokenizers whose readers break a promise: they delay, drop or misread text."""

import dataclasses
from functools import partial
from typing import Any

from broken.broken import Broken
from broken.changed_tokenizer import Changed
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.kit.plain_parser import PlainParser
from vlmkit.types.delta import Delta, TextDelta, text_of
from vlmkit_mock.tokenizer import MockTokenizer, MockTokenStream
from vlmkit_mock.vocabulary import BEGIN, END, NUM_BYTES


class WithStream(MockTokenizer):
    """Reads everything as text, with its own stream."""

    stream: Any = MockTokenStream

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return PlainParser(self.stream())


class KeepsTheReaderOfAPrompt(MockTokenizer):
    kept: Any = (None, None)

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if self.kept[0] is not prompt:
            self.kept = prompt, super().reader(prompt, shows_special=shows_special)
        reader: AnswerReader = self.kept[1]
        return reader


class StrictStream(MockTokenStream):
    def push(self, token_id: int) -> str:
        return bytes([token_id]).decode() if token_id < NUM_BYTES else ""


class StreamWithoutSpaces(MockTokenStream):
    def push(self, token_id: int) -> str:
        return super().push(token_id).strip()


class StreamThatDropsHeldSpaces(MockTokenStream):
    """Holds back spaces until text follows, and drops them at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._held = ""

    def push(self, token_id: int) -> str:
        text = self._held + super().push(token_id)
        shown = text.rstrip(" ")
        self._held = text[len(shown) :]
        return shown


class StreamThatWaitsForTheEnd(MockTokenStream):
    def __init__(self) -> None:
        super().__init__()
        self._held = ""

    def push(self, token_id: int) -> str:
        self._held += super().push(token_id)
        return ""

    def flush(self) -> str:
        return self._held + super().flush()


class StreamWithOneSpelling(MockTokenStream):
    def push(self, token_id: int) -> str:
        return super().push(BEGIN if token_id == END else token_id)


class ReadsByTheNewestPrompt(MockTokenizer):
    newest: Any = None

    def prompt(self, *arguments: Any, **options: Any) -> Prompt:
        self.newest = super().prompt(*arguments, **options)
        newest: Prompt = self.newest
        return newest

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if self.newest is not None:
            prompt = dataclasses.replace(prompt, calling=self.newest.calling)
        return super().reader(prompt, shows_special=shows_special)


class DropsTheLastSpaceBesideTools(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if prompt.calling is not None:
            return PlainParser(StreamThatDropsHeldSpaces())
        return super().reader(prompt, shows_special=shows_special)


class StreamWithoutItsFirstSpace(MockTokenStream):
    has_begun = False

    def push(self, token_id: int) -> str:
        text = super().push(token_id)
        text = text if self.has_begun else text.lstrip()
        self.has_begun |= bool(text)
        return text


class ContinuesWithoutASpace(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if prompt.is_plain:
            return PlainParser(StreamWithoutItsFirstSpace())
        return super().reader(prompt, shows_special=shows_special)


class StreamThatWaitsForText(MockTokenStream):
    """Holds back white space until text follows, and drops it where none does."""

    def __init__(self) -> None:
        super().__init__()
        self._held = ""
        self._has_begun = False

    def push(self, token_id: int) -> str:
        text = self._held + super().push(token_id)
        self._has_begun |= bool(text.strip())
        self._held = "" if self._has_begun else text
        return text if self._has_begun else ""


class DropsAnswersOfWhiteSpace(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if prompt.is_plain:
            return super().reader(prompt, shows_special=shows_special)
        return PlainParser(StreamThatWaitsForText())


class StreamAfter(MockTokenStream):
    def __init__(self, begun: str) -> None:
        super().__init__()
        self._begun = begun

    def flush(self) -> str:
        rest = super().flush()
        return self._begun + rest if rest else ""


class RepeatsThePromptBehindHalfACharacter(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if prompt.is_plain:
            return PlainParser(StreamAfter(self.decode(prompt.token_ids)))
        return super().reader(prompt, shows_special=shows_special)


class StreamOfOneNewline(MockTokenStream):
    def push(self, token_id: int) -> str:
        return super().push(token_id).replace("\r", "")


class ContinuesWithOneNewline(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if prompt.is_plain:
            return PlainParser(StreamOfOneNewline())
        return super().reader(prompt, shows_special=shows_special)


class SpellsTwoTokensAlike(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return PlainParser(StreamWithOneSpelling(shows_special=shows_special))


class FailsOnInvalidBytes(WithStream):
    stream = StrictStream


class DropsSpaces(WithStream):
    stream = StreamWithoutSpaces


class DropsHeldText(WithStream):
    stream = StreamThatDropsHeldSpaces


class ReturnsAllTextAtTheEnd(WithStream):
    stream = StreamThatWaitsForTheEnd


class ShowsTheEndToken(WithStream):
    stream = partial(MockTokenStream, shows_special=True)


class SharesItsReader(MockTokenizer):
    shared: AnswerReader = PlainParser(MockTokenStream())

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return self.shared


class IgnoresOpenReasoning(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        begun = dataclasses.replace(prompt, opens_reasoning=False)
        return super().reader(begun, shows_special=shows_special)


class HidesThatItOpensReasoning(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return dataclasses.replace(prompt, opens_reasoning=False)


class NamesNoReasoningMarks(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return dataclasses.replace(prompt, reasoning_marks=None)


class ReadsNoCalls(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return super().reader(dataclasses.replace(prompt, calling=None))


class ReadsCallsEverywhere(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return super().reader(dataclasses.replace(prompt, is_plain=False))


class ReaderThatCountsTooMuch(PlainParser):
    """Reports a constant count of reasoning tokens."""

    @property
    def num_reasoning_tokens(self) -> int:  # type: ignore[override]
        return 99

    def push(self, token_id: int) -> tuple[Delta, ...]:
        return (TextDelta(text_of(super().push(token_id))),)


class CountsMissingReasoning(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return ReaderThatCountsTooMuch(MockTokenStream())


BROKEN = (
    Broken(
        DropsSpaces,
        "Deltas contain the text of an answer, spaces included.",
        "streamed_text_equals_decoded_text",
    ),
    Broken(
        FailsOnInvalidBytes,
        "A model may sample any tokens, incomplete characters included.",
        "any_sampled_tokens_can_be_streamed",
        raises=(UnicodeDecodeError,),
    ),
    Broken(
        CountsMissingReasoning,
        "num_reasoning_tokens counts tokens of this answer.",
        "any_sampled_tokens_can_be_streamed",
    ),
    Broken(
        KeepsTheReaderOfAPrompt,
        "Each answer to a prompt has a reader of its own.",
        "two_readers_do_not_mix",
    ),
    Broken(SharesItsReader, "reader() returns a fresh reader.", "two_readers_do_not_mix"),
    Broken(
        DropsHeldText,
        "finish() returns the held-back text.",
        "an_answer_may_end_anywhere",
    ),
    Broken(
        ReturnsAllTextAtTheEnd,
        "push() returns the text that a token adds.",
        "text_is_streamed",
    ),
    Broken(
        ShowsTheEndToken,
        "Special tokens are not part of the text, unless requested.",
        "special_tokens_are_no_part_of_the_text",
    ),
    Broken(
        IgnoresOpenReasoning,
        "An answer continues the reasoning that its prompt opened.",
        "reasoning_that_the_prompt_began_goes_on",
    ),
    Broken(
        HidesThatItOpensReasoning,
        "opens_reasoning states whether the template opened reasoning.",
        "reasoning_that_the_prompt_began_goes_on",
    ),
    Broken(
        NamesNoReasoningMarks,
        "A prompt names the reasoning marks, which a budget needs.",
        "a_prompt_names_the_marks_of_reasoning",
    ),
    Broken(
        SpellsTwoTokensAlike,
        "Each special token has an id and a spelling of its own.",
        "each_special_token_has_an_id_of_its_own",
    ),
    Broken(
        ReadsNoCalls,
        "Calls are separated from text if tools are offered.",
        "a_tool_call_is_separated_from_text",
    ),
    Broken(
        ReadsByTheNewestPrompt,
        "A reader parses the answer to its own prompt.",
        "a_reader_follows_its_own_prompt",
    ),
    Broken(
        DropsTheLastSpaceBesideTools,
        "White space at the end of an answer is part of it, also if tools are offered.",
        "an_answer_that_calls_nothing_is_its_text",
    ),
    Broken(
        DropsAnswersOfWhiteSpace,
        "finish() returns the held-back text, also if the answer is white space alone.",
        "white_space_is_part_of_an_answer",
    ),
    Broken(
        RepeatsThePromptBehindHalfACharacter,
        "finish() returns the held-back text of the answer alone.",
        "a_continuation_joins_its_plain_text",
    ),
    Broken(
        ContinuesWithOneNewline,
        "The continuation of any plain text is the text of its tokens.",
        "any_plain_text_is_continued",
    ),
    Broken(
        ContinuesWithoutASpace,
        "The continuation of a plain text keeps its first space.",
        "a_continuation_joins_its_plain_text",
    ),
    Broken(
        ReadsCallsEverywhere,
        "The continuation of a plain text contains no calls.",
        "a_tool_call_is_separated_from_text",
    ),
)
