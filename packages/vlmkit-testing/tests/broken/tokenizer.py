"""Tokenizers that break one promise each, derived from the mock tokenizer."""

import dataclasses
from collections.abc import Sequence as Seq
from typing import Any

from broken import (
    tokenizer_calls,
    tokenizer_combined,
    tokenizer_large,
    tokenizer_media,
    tokenizer_prompts,
    tokenizer_readers,
    tokenizer_sizes,
    tokenizer_texts,
)
from broken.broken import Broken, Table
from vlmkit.errors import ImageError
from vlmkit.interfaces.chat_format import Mark
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.kit.plain_parser import PlainParser
from vlmkit.kit.reasoning_parser import ReasoningParser
from vlmkit.types.delta import Delta, TextDelta
from vlmkit.types.media import MediaPart
from vlmkit.types.message import Message, ReasoningPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_mock.tokenizer import MockTokenizer, MockTokenStream
from vlmkit_mock.vocabulary import END, REASONING, REASONING_END, SPECIAL_TOKENS
from vlmkit_testing import TokenizerContract


class ParsesSpecialTexts(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        head, found, tail = text.partition("<|end|>")
        ids = super().encode(head)
        return [*ids, END, *self.encode(tail)] if found else ids


class ShowsIncompleteCharacters(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> PlainParser:
        tokenizer = self

        class Stream:
            def push(self, token_id: int) -> str:
                return tokenizer.decode([token_id])

            def flush(self) -> str:
                return ""

        return PlainParser(Stream())


class ReadsReasoningAsText(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> PlainParser:
        return PlainParser(MockTokenStream())


class ChangedReader(ReasoningParser):
    def __init__(self) -> None:
        marks = Mark("<|reasoning|>", REASONING), Mark("<|reasoning_end|>", REASONING_END)
        super().__init__(MockTokenStream, *marks)


class LeavesMarksOutOfTheCount(ChangedReader):
    @property
    def num_reasoning_tokens(self) -> int:
        return max(0, super().num_reasoning_tokens - 2)


class CountsOnlyAtTheEnd(ChangedReader):
    @property
    def num_reasoning_tokens(self) -> int:
        return super().num_reasoning_tokens if self._phase == "say" else 0


class CountsTextAsReasoning(ChangedReader):
    def push(self, token_id: int) -> tuple[Delta, ...]:
        self._is_open = True
        return super().push(token_id)


class ReadsUnfinishedReasoningAsText(ChangedReader):
    def finish(self) -> tuple[Delta, ...]:
        return (*super().finish(), TextDelta("..."))


class WithReader(MockTokenizer):
    kind: type[ChangedReader]

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> ReasoningParser:
        return self.kind()


class AddsSpecialTokensAsText(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(f"<begin>{text}" if adds_special else text)


class HonoursUnknownOptions(MockTokenizer):
    @property
    def honours(self) -> frozenset[Any]:
        return super().honours | {"anything"}


class AlwaysOpensAnAnswer(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        return super().prompt(messages, tools=tools)


class ClosesContinuedMessages(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        goes_on = options.continue_final_message
        ids = (*made.token_ids, *b".") if goes_on else made.token_ids
        return dataclasses.replace(made, token_ids=ids)


class TrimsContinuedMessages(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        if options.continue_final_message:
            *before, last = messages
            messages = [*before, Message.of(last.role, last.text.rstrip())]
        return super().prompt(messages, tools=tools, options=options)


class DependsOnUnusedVariables(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        added = len(options.chat_template_kwargs)
        return dataclasses.replace(made, token_ids=(*made.token_ids, *b"x" * added))


class IgnoresReasoningEffort(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        without = dataclasses.replace(options, reasoning_effort=None)
        return super().prompt(messages, tools=tools, options=without)


class NeverShowsSpecialTokens(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return super().reader(prompt)


class DropsTurns(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        return super().prompt(messages[-1:], tools=tools, options=options)


class DropsCalls(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        said = [
            dataclasses.replace(
                message, parts=tuple(p for p in message.parts if not isinstance(p, ToolCallPart))
            )
            for message in messages
        ]
        return super().prompt(said, tools=tools, options=options)


class ParsesSpecialTextsOfReasoning(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        thoughts = "".join(
            part.text for m in messages for part in m.parts if isinstance(part, ReasoningPart)
        )
        made = super().prompt(messages, tools=tools, options=options)
        ends = (END,) * thoughts.count("<|end|>")
        return dataclasses.replace(made, token_ids=(*made.token_ids, *ends))


class ChangesSlots(MockTokenizer):
    def change(self, slots: tuple[MediaSlot, ...]) -> tuple[MediaSlot, ...]:
        raise NotImplementedError

    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        return dataclasses.replace(made, media=self.change(made.media))


class HasOneDigestForAllImages(ChangesSlots):
    def change(self, slots: tuple[MediaSlot, ...]) -> tuple[MediaSlot, ...]:
        return tuple(dataclasses.replace(slot, digest=bytes(32)) for slot in slots)


class ReversesSlots(ChangesSlots):
    def change(self, slots: tuple[MediaSlot, ...]) -> tuple[MediaSlot, ...]:
        return slots[::-1]


class SkipsUnknownMedia(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        known = [
            dataclasses.replace(m, parts=tuple(p for p in m.parts if not isinstance(p, MediaPart)))
            for m in messages
        ]
        return super().prompt(known, tools=tools, options=options)


class SkipsTools(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        return super().prompt(messages, options=options)


class TreatsALightPromptAsWhole(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        return super().prompt(messages, tools=tools)


class GuessesSizes(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        return dataclasses.replace(made, token_ids=made.token_ids[options.light :])


class OnTokenizer(TokenizerContract):
    names_calls = True

    def __init__(self, kind: type[MockTokenizer]) -> None:
        self._kind = kind

    def make(self) -> MockTokenizer:
        return self._kind()

    def smaller(self) -> dict[str, int]:
        return {"max_dynamic_patch": 1}

    def special_texts(self) -> list[str]:
        return list(SPECIAL_TOKENS)

    def reasoning_marks(self) -> tuple[list[int], list[int]]:
        return [REASONING], [REASONING_END]


def on_reader(reader: type[Any]) -> OnTokenizer:
    """Return the contract on a tokenizer, or on the mock tokenizer with another reader."""
    if issubclass(reader, MockTokenizer):
        return OnTokenizer(reader)
    return OnTokenizer(type(reader.__name__, (WithReader,), {"kind": reader}))


TABLE = Table(
    TokenizerContract,
    OnTokenizer,
    MockTokenizer,
    (
        Broken(
            ReadsReasoningAsText,
            "Reasoning is separated from text.",
            "reasoning_is_separated_from_text",
        ),
        Broken(
            LeavesMarksOutOfTheCount,
            "Reasoning marks count as reasoning tokens.",
            "reasoning_is_separated_from_text",
            on=on_reader,
        ),
        Broken(
            CountsOnlyAtTheEnd,
            "Reasoning is counted while it streams.",
            "reasoning_is_counted_while_it_streams",
            on=on_reader,
        ),
        Broken(
            CountsTextAsReasoning,
            "Text is not counted as reasoning.",
            "text_alone_is_no_reasoning",
            on=on_reader,
        ),
        Broken(
            ReadsUnfinishedReasoningAsText,
            "An answer may end inside its reasoning.",
            "an_answer_may_end_within_its_reasoning",
            on=on_reader,
        ),
        Broken(
            ChangedReader,
            "The continuation of a plain text is text.",
            "the_continuation_of_a_plain_text_is_text",
            on=on_reader,
            honest=MockTokenizer,
        ),
        Broken(
            ParsesSpecialTexts,
            "No text becomes a special token.",
            "no_text_becomes_a_special_token",
        ),
        Broken(
            ShowsIncompleteCharacters,
            "A reader holds back an incomplete character.",
            "two_readers_do_not_mix",
        ),
        Broken(
            AddsSpecialTokensAsText,
            "Tokens added around a text add no text.",
            "tokens_around_a_text_add_no_text",
        ),
        Broken(
            DropsCalls,
            "Tool calls are in the prompt or refused.",
            "calls_of_tools_are_in_the_prompt_or_refused",
        ),
        Broken(
            ParsesSpecialTextsOfReasoning,
            "No string of an earlier answer changes the structure of a prompt.",
            "no_string_of_an_earlier_answer_changes_the_structure_of_a_prompt",
        ),
        Broken(
            HonoursUnknownOptions,
            "Only known options are honoured.",
            "only_known_options_are_honoured",
        ),
        Broken(
            AlwaysOpensAnAnswer,
            "A prompt may end without the start of an answer.",
            "a_prompt_may_end_where_no_answer_begins",
        ),
        Broken(
            ClosesContinuedMessages,
            "A prompt may end inside the last message.",
            "a_prompt_may_end_within_the_last_message",
        ),
        Broken(
            TrimsContinuedMessages,
            "A message that is continued keeps the white space at its end.",
            "a_prompt_may_end_within_the_last_message",
        ),
        Broken(
            DependsOnUnusedVariables,
            "Unused template variables change nothing.",
            "unused_template_variables_change_nothing",
        ),
        Broken(
            IgnoresReasoningEffort,
            "The reasoning effort changes the prompt.",
            "the_reasoning_effort_changes_the_prompt",
        ),
        Broken(
            NeverShowsSpecialTokens,
            "Special tokens are shown on request.",
            "special_tokens_are_shown_on_request",
        ),
        Broken(
            DropsTurns,
            "The prompt contains every turn of a conversation.",
            "a_conversation_has_every_turn_in_its_prompt",
        ),
        Broken(
            SkipsTools,
            "Tools are in the prompt or refused.",
            "tools_are_in_the_prompt_or_refused",
        ),
        Broken(
            SkipsUnknownMedia,
            "Media of unknown kinds are refused by name.",
            "media_of_unknown_kinds_are_refused_by_name",
        ),
        Broken(
            HasOneDigestForAllImages,
            "Different images have different digests.",
            "digests_depend_on_the_image_alone",
        ),
        Broken(
            ReversesSlots,
            "Slots are ordered.",
            "slots_are_ordered_disjoint_and_within_the_prompt",
        ),
        Broken(
            ReversesSlots,
            "Slots follow the order of the images.",
            "slots_follow_the_order_of_the_images",
        ),
        Broken(
            TreatsALightPromptAsWhole,
            "Sizes alone give a light prompt the tokens of the whole one.",
            "sizes_alone_give_a_light_prompt_the_same_tokens",
            raises=(ImageError,),
        ),
        Broken(
            GuessesSizes,
            "A light prompt has as many tokens as the whole one.",
            "sizes_alone_give_a_light_prompt_the_same_tokens",
        ),
        *tokenizer_texts.BROKEN,
        *tokenizer_readers.BROKEN,
        *tokenizer_prompts.BROKEN,
        *tokenizer_media.BROKEN,
        *tokenizer_sizes.BROKEN,
        *tokenizer_large.BROKEN,
        *tokenizer_calls.BROKEN,
        *tokenizer_combined.BROKEN,
    ),
)
