"""Tokenizers that break one promise about tool calls and reasoning each."""

import dataclasses
from collections.abc import Sequence as Seq
from typing import Any

from broken.broken import Broken
from broken.changed_tokenizer import Changed
from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.kit.plain_parser import PlainParser
from vlmkit.kit.tool_call_parser import ToolCallParser
from vlmkit.types.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.types.message import Message
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_mock.tokenizer import MockTokenizer, MockTokenStream
from vlmkit_mock.vocabulary import VOCAB_SIZE


class NamesNoFormatOfCalls(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return dataclasses.replace(prompt, calling=None)


class ReadsCallsOfEmptyLists(Changed):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        if tools != []:
            return made
        calling = super().prompt(messages, tools=[{}]).calling
        return dataclasses.replace(made, calling=calling)


class ChangedCalls:
    """Changes the deltas of another reader."""

    def __init__(self, reader: AnswerReader) -> None:
        self.reader = reader

    @property
    def num_reasoning_tokens(self) -> int:
        return self.reader.num_reasoning_tokens

    def push(self, token_id: int) -> tuple[Delta, ...]:
        return tuple(map(self.changed, self.reader.push(token_id)))

    def finish(self) -> tuple[Delta, ...]:
        return tuple(map(self.changed, self.reader.finish()))

    def changed(self, delta: Delta) -> Delta:
        return self.call(delta) if isinstance(delta, ToolCallDelta) else delta

    def call(self, delta: ToolCallDelta) -> ToolCallDelta:
        raise NotImplementedError


class WithCalls(MockTokenizer):
    kind: type[ChangedCalls]

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return self.kind(super().reader(prompt, shows_special=shows_special))


class CallsOfIndexZero(ChangedCalls):
    def call(self, delta: ToolCallDelta) -> ToolCallDelta:
        return ToolCallDelta(0, delta.id, delta.name, delta.arguments)


class GivesAllCallsOneIndex(WithCalls):
    kind = CallsOfIndexZero


class CallsWithRepeatedIds(ChangedCalls):
    newest = ""

    def call(self, delta: ToolCallDelta) -> ToolCallDelta:
        self.newest = delta.id or self.newest
        return ToolCallDelta(delta.index, self.newest, delta.name, delta.arguments)


class RepeatsTheIdOfACall(WithCalls):
    kind = CallsWithRepeatedIds


class CallsOfOneId(ChangedCalls):
    def call(self, delta: ToolCallDelta) -> ToolCallDelta:
        return ToolCallDelta(delta.index, delta.id and "call", delta.name, delta.arguments)


class GivesAllCallsOneId(WithCalls):
    kind = CallsOfOneId


class NumberedCalls(ChangedCalls):
    def call(self, delta: ToolCallDelta) -> ToolCallDelta:
        name = delta.id and f"call-{delta.index}"
        return ToolCallDelta(delta.index, name, delta.name, delta.arguments)


class NumbersTheCallsOfAnAnswer(WithCalls):
    kind = NumberedCalls


class AsciiCalls(ChangedCalls):
    def call(self, delta: ToolCallDelta) -> ToolCallDelta:
        said = delta.arguments.encode("ascii", "replace").decode()
        return ToolCallDelta(delta.index, delta.id, delta.name, said)


class ReadsAsciiArguments(WithCalls):
    kind = AsciiCalls


class OnlyCalls(ToolCallParser):
    def push(self, token_id: int) -> tuple[Delta, ...]:
        return tuple(each for each in super().push(token_id) if isinstance(each, ToolCallDelta))

    def finish(self) -> tuple[Delta, ...]:
        return tuple(each for each in super().finish() if isinstance(each, TextDelta))


class DropsTextBeforeCalls(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if prompt.calling is None or prompt.is_plain:
            return super().reader(prompt, shows_special=shows_special)
        return OnlyCalls(MockTokenStream, prompt.calling.format, prompt.calling.tools)  # type: ignore[arg-type]


class ReadsNoReasoningBeforeCalls(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if prompt.calling is None or prompt.is_plain:
            return super().reader(prompt, shows_special=shows_special)
        return ToolCallParser(MockTokenStream, prompt.calling.format, prompt.calling.tools)  # type: ignore[arg-type]


class ShowsCallsAsText(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        without = dataclasses.replace(prompt, calling=None) if shows_special else prompt
        return super().reader(without, shows_special=shows_special)


class ShowsMarksOfReasoning(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        if shows_special:
            return PlainParser(MockTokenStream(shows_special=True))
        return super().reader(prompt)


class OpensReasoningWithoutAnAnswer(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        thinks = options.reasoning_effort not in (None, "none")
        return dataclasses.replace(made, opens_reasoning=made.opens_reasoning or thinks)


class ForgetsThatAPromptIsOpen(MockTokenizer):
    def __init__(self) -> None:
        self.read: list[Prompt] = []

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        is_used = any(prompt is each for each in self.read)
        self.read.append(prompt)
        opens = prompt.opens_reasoning and not is_used
        begun = dataclasses.replace(prompt, opens_reasoning=opens)
        return super().reader(begun, shows_special=shows_special)


class CountsTooManyTokens(MockTokenizer):
    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE + 1

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return PlainParser(KnownTokens(shows_special=shows_special))


class KnownTokens(MockTokenStream):
    def push(self, token_id: int) -> str:
        return super().push(token_id) if token_id < VOCAB_SIZE else ""


class AsciiReasoning(ChangedCalls):
    def changed(self, delta: Delta) -> Delta:
        if not isinstance(delta, ReasoningDelta):
            return delta
        return ReasoningDelta(delta.text.encode("ascii", "ignore").decode())


class ReadsAsciiReasoning(WithCalls):
    kind = AsciiReasoning


class OffersNoToolsToLightPrompts(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        offered = None if options.light else tools
        return super().prompt(messages, tools=offered, options=options)


class IgnoresTheEffortBesideVariables(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        if options.chat_template_kwargs:
            options = dataclasses.replace(options, reasoning_effort=None)
        return super().prompt(messages, tools=tools, options=options)


SEVERAL = "each_of_several_calls_has_its_own_index_and_id"
BEFORE = "text_and_reasoning_before_a_call_stay"
BROKEN = (
    Broken(
        NamesNoFormatOfCalls,
        "A prompt with tools states the format of calls, if it is known.",
        "the_format_of_calls_is_stated",
    ),
    Broken(
        ReadsCallsOfEmptyLists,
        "calling is None if there are no tools.",
        "only_offered_tools_have_a_call_format",
    ),
    Broken(
        GivesAllCallsOneIndex,
        "index is the index of the call in the answer.",
        SEVERAL,
        raises=(RequestError,),
    ),
    Broken(RepeatsTheIdOfACall, "Only the first delta of a call has its id.", SEVERAL),
    Broken(GivesAllCallsOneId, "Each call of an answer has an id of its own.", SEVERAL),
    Broken(
        NumbersTheCallsOfAnAnswer,
        "Calls of different answers have different ids.",
        "ids_of_calls_differ_between_answers",
    ),
    Broken(
        ReadsAsciiArguments,
        "The arguments of a call may have any characters.",
        "a_tool_call_is_separated_from_text",
    ),
    Broken(DropsTextBeforeCalls, "Text before a call is part of the answer.", BEFORE),
    Broken(ReadsNoReasoningBeforeCalls, "Reasoning may precede a call.", BEFORE),
    Broken(
        ShowsCallsAsText,
        "Calls are read if special tokens are shown.",
        "calls_are_read_if_special_tokens_are_shown",
    ),
    Broken(
        ShowsMarksOfReasoning,
        "The delimiters of reasoning are never part of the text.",
        "reasoning_is_separated_from_text",
    ),
    Broken(
        OpensReasoningWithoutAnAnswer,
        "A prompt opens reasoning only if an answer starts inside it.",
        "a_prompt_without_an_answers_start_opens_no_reasoning",
    ),
    Broken(
        ForgetsThatAPromptIsOpen,
        "Each answer to a prompt starts inside the reasoning that it opened.",
        "reasoning_that_the_prompt_began_goes_on",
    ),
    Broken(
        CountsTooManyTokens,
        "vocab_size is the number of token ids that can be decoded.",
        "the_last_id_of_the_vocabulary_is_that_of_a_token",
    ),
    Broken(
        ReadsAsciiReasoning,
        "Reasoning may have any characters.",
        "reasoning_is_separated_from_text",
    ),
    Broken(
        OffersNoToolsToLightPrompts,
        "A light prompt has the tokens of its tools.",
        "a_light_prompt_has_the_requested_sizes",
    ),
    Broken(
        IgnoresTheEffortBesideVariables,
        "Unused variables do not change other options.",
        "unused_template_variables_change_nothing",
    ),
)
