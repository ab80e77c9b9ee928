"""Tokenizers that break a promise where several turns, parts, images or threads come together."""

import dataclasses
import time
from collections.abc import Sequence as Seq
from typing import Any

from broken.broken import Broken
from broken.changed_tokenizer import Changed, with_parts
from vlmkit.errors import ImageError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import (
    ImagePart,
    Message,
    Part,
    TextPart,
    image_parts_of,
    refuse_other_media,
)
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vocabulary import BEGIN, END


class DecodesIntoOneBuffer(MockTokenizer):
    """Lets other threads run in between, as a large text would."""

    token_ids: Seq[int] = ()

    def decode(self, token_ids: Seq[int]) -> str:
        self.token_ids = token_ids
        time.sleep(0.0005)
        return super().decode(self.token_ids)


class ParsesTextsOfSeveralParts(Changed):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        texts = [part.text for m in messages for part in m.parts if isinstance(part, TextPart)]
        ends = sum(m.text.count("<|end|>") for m in messages)
        joined = ends - sum(text.count("<|end|>") for text in texts)
        return dataclasses.replace(made, token_ids=(*made.token_ids, *[END] * joined))


class KeepsTheFirstText(Changed):
    role = "assistant"

    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [self.turn(m) if m.role == self.role else m for m in messages]

    def turn(self, message: Message) -> Message:
        first = next((part for part in message.parts if isinstance(part, TextPart)), None)
        return with_parts(message, lambda p: not isinstance(p, TextPart) or p is first)


class KeepsTheFirstTextOfResults(KeepsTheFirstText):
    role = "tool"


class DropsTextBesideCalls(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [
            with_parts(message, lambda part: not isinstance(part, TextPart))
            if any(isinstance(part, ToolCallPart) for part in message.parts)
            else message
            for message in messages
        ]


class DropsTheSystemBesideTools(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        kept = [m for m in messages if not tools or m.role != "system"]
        return super().prompt(kept, tools=tools, options=options)


class IgnoresTheEffortBesideTools(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        asked = dataclasses.replace(options, reasoning_effort=None) if tools else options
        return super().prompt(messages, tools=tools, options=asked)


class SkipsToolsBesideImages(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        num_images = len(list(image_parts_of(messages)))
        offered = tools if num_images < 2 else None
        return super().prompt(messages, tools=offered, options=options)


def begun(prompt: Prompt) -> Prompt:
    """Return a prompt with the start token once more."""
    media = tuple(
        dataclasses.replace(slot, start=slot.start + 1, stop=slot.stop + 1) for slot in prompt.media
    )
    return dataclasses.replace(prompt, token_ids=(BEGIN, *prompt.token_ids), media=media)


class BeginsTwice(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return begun(prompt)


class BeginsTwiceWithTools(MockTokenizer):
    """Has a template whose branch for tools writes the start token, which is added anyway."""

    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        return begun(made) if tools else made


class BeginsTwiceWithoutAnAnswer(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        return made if options.begins_answer else begun(made)


class ContinuesWithoutABeginning(MockTokenizer):
    """Leaves the start token out where the last message goes on."""

    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        if not options.continue_final_message:
            return made
        media = tuple(
            dataclasses.replace(slot, start=slot.start - 1, stop=slot.stop - 1)
            for slot in made.media
        )
        return dataclasses.replace(made, token_ids=made.token_ids[1:], media=media)


class ChecksTheNewestTurn(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        refuse_other_media(messages[-1:], {"image"})
        known = [with_parts(m, lambda p: not isinstance(p, MediaPart | FilePart)) for m in messages]
        return super().prompt(known, tools=tools, options=options)


class NumbersImagesInTheirTurn(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        try:
            return super().prompt(messages, tools=tools, options=options)
        except ImageError as error:
            turns = [len(list(image_parts_of([message]))) for message in messages]
            while turns and error.index is not None and error.index >= turns[0]:
                error.index -= turns.pop(0)
            raise


class PutsSeveralImagesFirst(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return list(map(self.turn, messages))

    def turn(self, message: Message) -> Message:
        images = [part for part in message.parts if isinstance(part, ImagePart)]
        others = [part for part in message.parts if not isinstance(part, ImagePart)]
        parts: list[Part] = [*images, *others] if len(images) > 1 else list(message.parts)
        return dataclasses.replace(message, parts=tuple(parts))


class ShowsNoImageAfterAKnownOne(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        found, shown = False, []
        for message in messages:
            parts = []
            for part in message.parts:
                if not isinstance(part, ImagePart) or not found:
                    parts.append(part)
                found = found or (isinstance(part, ImagePart) and part.image.prepared is not None)
            shown.append(dataclasses.replace(message, parts=tuple(parts)))
        return shown


class ShowsAllImagesInTheFirstSize(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        first = next((part.options for part in image_parts_of(messages)), None)

        def shown(part: Part) -> Part:
            return ImagePart(part.image, first) if isinstance(part, ImagePart) and first else part

        return [dataclasses.replace(m, parts=tuple(map(shown, m.parts))) for m in messages]


class OutlinesImagesInTheirOwnSize(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        def plain(part: Part) -> Part:
            return ImagePart(part.image) if isinstance(part, ImagePart) else part

        if options.light:
            messages = [dataclasses.replace(m, parts=tuple(map(plain, m.parts))) for m in messages]
        return super().prompt(messages, tools=tools, options=options)


class ContinuesTheFirstText(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        if options.continue_final_message:
            *before, last = messages
            messages = [*before, dataclasses.replace(last, parts=last.parts[:1])]
        return super().prompt(messages, tools=tools, options=options)


COMBINED = "each_part_of_a_combination_is_in_the_prompt_or_refused"
TEXTS = "each_text_of_a_turn_is_in_the_prompt"
BEGINS = "what_begins_a_text_begins_a_prompt_once"
BROKEN = (
    Broken(
        DecodesIntoOneBuffer,
        "decode() is called from several threads at once.",
        "every_method_may_run_in_several_threads",
    ),
    Broken(
        ParsesTextsOfSeveralParts,
        "Text never becomes a control token, also if two parts spell it together.",
        "two_texts_never_join_to_a_special_text",
    ),
    Broken(KeepsTheFirstText, "Every text of an earlier answer is in the prompt.", TEXTS),
    Broken(KeepsTheFirstTextOfResults, "Every text of a tool's result is in the prompt.", TEXTS),
    Broken(
        DropsTextBesideCalls,
        "The text of an answer with calls is in the prompt.",
        "a_text_beside_a_call_is_in_the_prompt_or_refused",
    ),
    Broken(DropsTheSystemBesideTools, "System text is in the prompt, also with tools.", COMBINED),
    Broken(IgnoresTheEffortBesideTools, "Tools do not change other options.", COMBINED),
    Broken(SkipsToolsBesideImages, "Tools are in the prompt, also with images.", COMBINED),
    Broken(
        BeginsTwice,
        "The tokens that begin a text begin a prompt once.",
        BEGINS,
    ),
    Broken(BeginsTwiceWithTools, "They begin a prompt with tools once.", BEGINS),
    Broken(BeginsTwiceWithoutAnAnswer, "They begin a prompt once, whatever the options.", BEGINS),
    Broken(ContinuesWithoutABeginning, "They begin a prompt that an answer continues.", BEGINS),
    Broken(
        ChecksTheNewestTurn,
        "A file without a loader is refused in any turn.",
        "a_file_without_a_loader_is_refused",
    ),
    Broken(
        ChecksTheNewestTurn,
        "Media of unknown kinds are refused in any turn.",
        "media_of_unknown_kinds_are_refused_by_name",
    ),
    Broken(
        NumbersImagesInTheirTurn,
        "The index of an image counts those of the conversation.",
        "a_refused_bound_names_which_image_it_is",
    ),
    Broken(
        PutsSeveralImagesFirst,
        "Each of several images stays at its position.",
        "images_stand_between_the_texts_around_them",
    ),
    Broken(
        ShowsNoImageAfterAKnownOne,
        "Images that were shown before and new ones come in any order.",
        "a_slot_that_is_used_again_gives_the_same_prompt",
    ),
    Broken(
        ShowsAllImagesInTheFirstSize,
        "Each image has its own options.",
        "each_image_of_a_prompt_has_its_own_size",
    ),
    Broken(
        OutlinesImagesInTheirOwnSize,
        "The images of a light prompt have the requested sizes.",
        "a_light_prompt_has_the_requested_sizes",
    ),
    Broken(
        ContinuesTheFirstText,
        "A message that is continued has all its texts.",
        "a_prompt_may_end_within_the_last_message",
    ),
)
