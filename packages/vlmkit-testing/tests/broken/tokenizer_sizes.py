"""Tokenizers that break a promise about images that are wanted smaller."""

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


class ForgetsBounds(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, max_tokens=None)


class TakesBoundsForWishes(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, max_tokens=None, wanted_tokens=options.most_tokens)


class TakesWishesForBounds(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, max_tokens=options.most_tokens)


class ForgetsWishes(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, wanted_tokens=None)


class PassesOverLimits(ChangesOptions):
    def change(self, options: ImageOptions) -> ImageOptions:
        return dataclasses.replace(options, processor={})


class TellsByThePictureAlone(MockTokenizer):
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


class TellsNotWhich(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        try:
            return super().prompt(messages, tools=tools, options=options)
        except ImageError as error:
            error.index = None
            raise


class ForgetsPlaces(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        return dataclasses.replace(made, place_format=None)


class DigestsTheBound(MockTokenizer):
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
        ForgetsBounds,
        "max_tokens is kept to, or refused.",
        "an_image_keeps_to_its_tokens_or_is_refused",
    ),
    Broken(
        TakesBoundsForWishes,
        "A bound is no wish: what cannot be made so small is refused.",
        "a_refused_bound_names_which_image_it_is",
    ),
    Broken(
        TellsNotWhich,
        "An ImageError says which image it is.",
        "a_refused_bound_names_which_image_it_is",
    ),
    Broken(
        TakesWishesForBounds,
        "A wish is never refused.",
        "a_preferred_size_is_never_refused",
        raises=(ImageError,),
    ),
    Broken(
        ForgetsWishes,
        "wanted_tokens makes pictures smaller.",
        "a_preferred_size_makes_images_smaller",
    ),
    Broken(
        TellsByThePictureAlone,
        "Of images that are shown in several sizes, each size has a digest of its own.",
        "one_image_in_two_sizes_has_two_digests",
    ),
    Broken(
        DigestsTheBound,
        "A bound that changes nothing changes no digest.",
        "a_bound_that_is_large_enough_changes_nothing",
    ),
    Broken(
        ForgetsPlaces,
        "return_places means that prompts with images have a place_format.",
        "a_known_grounding_format_is_stated",
    ),
    Broken(
        PassesOverLimits,
        "mm_processor_kwargs means that processor is looked at.",
        "limits_by_the_processors_names_are_taken_or_refused",
    ),
)
