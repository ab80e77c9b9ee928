"""Tokenizers that break a promise about size limits of images."""

import dataclasses
import hashlib
from collections.abc import Sequence as Seq
from typing import Any

from broken.broken import Broken
from vlmkit.errors import ImageError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message, image_parts_of
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_mock.tokenizer import MockTokenizer


class ChangesOptions(MockTokenizer):
    def change(self, options: ImageOptions) -> ImageOptions:
        raise NotImplementedError

    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        changed = [
            dataclasses.replace(
                message,
                parts=tuple(
                    dataclasses.replace(part, options=self.change(part.options))
                    if isinstance(part, ImagePart)
                    else part
                    for part in message.parts
                ),
            )
            for message in messages
        ]
        return super().prompt(changed, tools=tools, options=options)


class IgnoresTokenLimits(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, max_tokens=None)


class TreatsLimitsAsPreferences(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, max_tokens=None, wanted_tokens=options.most_tokens)


class TreatsPreferencesAsLimits(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, max_tokens=options.most_tokens)


class IgnoresPreferredSizes(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, wanted_tokens=None)


class IgnoresProcessorLimits(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, processor={})


class LeavesTheSizeOutOfDigests(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        first: dict[bytes, MediaSlot] = {}
        slots = []
        for slot in made.media:
            key = bytes(memoryview(slot.inputs["digest"]))[:8]  # type: ignore[arg-type]
            digest = first.setdefault(key, slot).digest
            slots.append(dataclasses.replace(slot, digest=digest))
        return dataclasses.replace(made, media=tuple(slots))


class DoesNotNameTheImage(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        try:
            return super().prompt(messages, tools=tools, options=options)
        except ImageError as error:
            error.index = None
            raise


class StatesNoGroundingFormat(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        return dataclasses.replace(made, place_format=None)


class DigestsTheLimit(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        slots = []
        for slot, part in zip(made.media, image_parts_of(messages), strict=True):
            told = slot.digest + str(part.options.max_tokens).encode()
            slots.append(dataclasses.replace(slot, digest=hashlib.sha256(told).digest()))
        return dataclasses.replace(made, media=tuple(slots))


BROKEN = (
    Broken(
        IgnoresTokenLimits,
        "max_tokens is enforced or refused.",
        "an_image_keeps_to_its_tokens_or_is_refused",
    ),
    Broken(
        TreatsLimitsAsPreferences,
        "An image that cannot be made small enough is refused.",
        "a_refused_bound_names_which_image_it_is",
    ),
    Broken(
        DoesNotNameTheImage,
        "An ImageError names the image.",
        "a_refused_bound_names_which_image_it_is",
    ),
    Broken(
        TreatsPreferencesAsLimits,
        "A preferred size is never refused.",
        "a_preferred_size_is_never_refused",
        raises=(ImageError,),
    ),
    Broken(
        IgnoresPreferredSizes,
        "wanted_tokens makes images smaller.",
        "a_preferred_size_makes_images_smaller",
    ),
    Broken(
        LeavesTheSizeOutOfDigests,
        "Each size of an image has its own digest.",
        "one_image_in_two_sizes_has_two_digests",
    ),
    Broken(
        DigestsTheLimit,
        "A limit that changes nothing changes no digest.",
        "a_bound_that_is_large_enough_changes_nothing",
    ),
    Broken(
        StatesNoGroundingFormat,
        "If return_places is honoured, prompts with images have a place_format.",
        "a_known_grounding_format_is_stated",
    ),
    Broken(
        IgnoresProcessorLimits,
        "If mm_processor_kwargs is honoured, processor is read.",
        "limits_by_the_processors_names_are_taken_or_refused",
    ),
)
