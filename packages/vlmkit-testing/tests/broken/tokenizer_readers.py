"""Tokenizers whose readers break a promise: text that comes late, is lost, or is none."""

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
from vlmkit_mock.vocabulary import NUM_BYTES


class WithStream(MockTokenizer):
    """Reads everything as text, by a stream of its own."""

    stream: Any = MockTokenStream

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return PlainParser(self.stream())


class StrictStream(MockTokenStream):
    def push(self, token_id: int) -> str:
        return bytes([token_id]).decode() if token_id < NUM_BYTES else ""


class BareStream(MockTokenStream):
    def push(self, token_id: int) -> str:
        return super().push(token_id).strip()


class ForgetfulStream(MockTokenStream):
    """Holds spaces back, in case nothing follows, and forgets them at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._held = ""

    def push(self, token_id: int) -> str:
        text = self._held + super().push(token_id)
        shown = text.rstrip(" ")
        self._held = text[len(shown) :]
        return shown


class PatientStream(MockTokenStream):
    def __init__(self) -> None:
        super().__init__()
        self._held = ""

    def push(self, token_id: int) -> str:
        self._held += super().push(token_id)
        return ""

    def flush(self) -> str:
        return self._held + super().flush()


class BreaksOnBadBytes(WithStream):
    stream = StrictStream


class LosesSpaces(WithStream):
    stream = BareStream


class ForgetsWhatItHolds(WithStream):
    stream = ForgetfulStream


class TellsAllAtTheEnd(WithStream):
    stream = PatientStream


class SpellsTheEnd(WithStream):
    stream = partial(MockTokenStream, shows_special=True)


class SharesItsReader(MockTokenizer):
    shared: AnswerReader = PlainParser(MockTokenStream())

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return self.shared


class ForgetsWhatWasBegun(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        begun = dataclasses.replace(prompt, opens_reasoning=False)
        return super().reader(begun, shows_special=shows_special)


class SaysNotThatItBegan(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return dataclasses.replace(prompt, opens_reasoning=False)


class NamesNoMarks(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return dataclasses.replace(prompt, reasoning_marks=None)


class ReadsNoCalls(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return super().reader(dataclasses.replace(prompt, calling=None))


class ReadsCallsEverywhere(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return super().reader(dataclasses.replace(prompt, is_plain=False))


class TalkativeReader(PlainParser):
    """Says more than there is, in the place of a count."""

    @property
    def num_reasoning_tokens(self) -> int:  # type: ignore[override]
        return 99

    def push(self, token_id: int) -> tuple[Delta, ...]:
        return (TextDelta(text_of(super().push(token_id))),)


class CountsWhatIsNotThere(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return TalkativeReader(MockTokenStream())


BROKEN = (
    Broken(
        LosesSpaces,
        "Deltas are the text of an answer, spaces included.",
        "streamed_text_equals_decoded_text",
    ),
    Broken(
        BreaksOnBadBytes,
        "A model may say anything, half characters too.",
        "any_sampled_tokens_can_be_streamed",
        raises=(UnicodeDecodeError,),
    ),
    Broken(
        CountsWhatIsNotThere,
        "num_reasoning_tokens counts tokens of this answer.",
        "any_sampled_tokens_can_be_streamed",
    ),
    Broken(SharesItsReader, "reader() returns a fresh reader.", "two_readers_do_not_mix"),
    Broken(
        ForgetsWhatItHolds,
        "finish() returns what was held back.",
        "an_answer_may_end_anywhere",
    ),
    Broken(
        TellsAllAtTheEnd,
        "push() returns what a token adds, as a rule one delta.",
        "text_is_streamed",
    ),
    Broken(
        SpellsTheEnd,
        "Special tokens are no part of the text, unless that is asked for.",
        "special_tokens_are_no_part_of_the_text",
    ),
    Broken(
        ForgetsWhatWasBegun,
        "Where the prompt began the reasoning, the answer goes on inside it.",
        "reasoning_that_the_prompt_began_goes_on",
    ),
    Broken(
        SaysNotThatItBegan,
        "opens_reasoning says whether the template began the reasoning.",
        "reasoning_that_the_prompt_began_goes_on",
    ),
    Broken(
        NamesNoMarks,
        "A prompt names the marks of reasoning, by which a budget is kept.",
        "a_prompt_names_the_marks_of_reasoning",
    ),
    Broken(
        ReadsNoCalls,
        "Calls are told apart from text where tools are offered.",
        "a_tool_call_is_separated_from_text",
    ),
    Broken(
        ReadsCallsEverywhere,
        "What follows a plain text is text alone.",
        "a_tool_call_is_separated_from_text",
    ),
)
