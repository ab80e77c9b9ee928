"""Tokenizers that break a promise about large conversations: they cut, drop or cache too much."""

import copy
import dataclasses
from collections.abc import Sequence as Seq
from typing import Any

from broken.broken import Broken
from broken.changed_tokenizer import Changed
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.message import Message, Part, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_mock.tokenizer import MockTokenizer


class DropsTheMiddleTurns(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [*messages[:4], *messages[-16:]] if len(messages) > 20 else messages


class ForgetsLaterCallIds(Changed):
    """Shows the id of the call of the first result alone."""

    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        first = next((each for each in messages if each.role == "tool"), None)
        return [
            each
            if each is first or each.role != "tool"
            else dataclasses.replace(each, call_id="another")
            for each in messages
        ]


class FlattensArguments(Changed):
    """Loses values below the first level of a call's arguments."""

    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [
            dataclasses.replace(each, parts=tuple(map(self.flat, each.parts))) for each in messages
        ]

    def flat(self, part: Part) -> Part:
        if not isinstance(part, ToolCallPart):
            return part
        known = {k: v for k, v in part.parsed().items() if not isinstance(v, dict)}
        return ToolCallPart(part.id, part.name, repr(known).replace("'", '"'))


class OffersEightTools(Changed):
    def offered(self, tools: Any) -> Any:
        return tools and tools[:8]


class DropsNestedSchemas(Changed):
    def offered(self, tools: Any) -> Any:
        shown = copy.deepcopy(tools)
        for tool in shown or ():
            for schema in tool["function"]["parameters"]["properties"].values():
                schema.pop("items", None)
        return shown


class CachesTextsByLengthAndEnds(MockTokenizer):
    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[Any, TextPart] = {}

    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        shown = [
            dataclasses.replace(each, parts=tuple(map(self.known, each.parts))) for each in messages
        ]
        return super().prompt(shown, tools=tools, options=options)

    def known(self, part: Part) -> Part:
        if not isinstance(part, TextPart):
            return part
        key = len(part.text), part.text[:32], part.text[-32:]
        return self.texts.setdefault(key, part)


class CutsLongTexts(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [dataclasses.replace(each, parts=tuple(map(cut, each.parts))) for each in messages]


def cut(part: Part) -> Part:
    return TextPart(part.text[:65_536]) if isinstance(part, TextPart) else part


class AddsTheBeginningToLongTexts(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text, adds_special=adds_special or len(text) >= 4096)


class BeginsTwiceWithLongTexts(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        begun = prompt.token_ids[: len(prompt) > 4096]
        return dataclasses.replace(prompt, token_ids=(*prompt.token_ids, *begun))


class ReusesTheThirdSlot(Changed):
    """Gives further images the digest of the third."""

    def made(self, prompt: Prompt) -> Prompt:
        slots = [
            dataclasses.replace(slot, digest=prompt.media[2].digest) if index > 2 else slot
            for index, slot in enumerate(prompt.media)
        ]
        return dataclasses.replace(prompt, media=tuple(slots))


TURNS = "each_turn_of_a_long_conversation_is_in_the_prompt"
CALLS = "each_result_of_parallel_calls_is_in_the_prompt"
IDS = "the_calls_of_all_results_are_in_the_prompt_or_of_none"
TOOLS = "each_part_of_many_tools_is_in_the_prompt"
TEXTS = "long_texts_that_differ_in_the_middle_have_other_prompts"
SPECIAL = "a_long_text_has_the_special_tokens_of_a_short_one"
IMAGES = "each_of_many_images_has_its_own_slot"
ROWS = (
    (DropsTheMiddleTurns, "Every turn is in the prompt, however many there are.", TURNS),
    (FlattensArguments, "Nested arguments of a call are in the prompt.", CALLS),
    (ForgetsLaterCallIds, "A result names its call, whichever it is.", IDS),
    (OffersEightTools, "Every tool is in the prompt, however many there are.", TOOLS),
    (DropsNestedSchemas, "Nested schemas of a tool are in the prompt.", TOOLS),
    (CachesTextsByLengthAndEnds, "Texts are equal only if all characters are.", TEXTS),
    (CutsLongTexts, "A text is never cut.", TEXTS),
    (AddsTheBeginningToLongTexts, "Special tokens are added on request alone.", SPECIAL),
    (BeginsTwiceWithLongTexts, "What begins a text begins a long prompt once.", SPECIAL),
    (ReusesTheThirdSlot, "Each image has its own slot, however many there are.", IMAGES),
)
BROKEN = tuple(Broken(kind, promise, test) for kind, promise, test in ROWS)
