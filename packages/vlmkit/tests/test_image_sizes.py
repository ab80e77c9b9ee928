"""Images in fewer tokens: what is asked for in Python, and tokenizers that claim it and forget."""

import dataclasses
import inspect
from collections.abc import Sequence as Seq
from typing import Any

import PIL.Image
import pytest

from vlmkit.ask.image import Image
from vlmkit.ask.image_options import MAX_PROCESSOR_OPTIONS, ImageOptions
from vlmkit.ask.message import ImagePart, Message
from vlmkit.ask.prompt_options import PromptOptions
from vlmkit.errors import ImageError, RequestError, VlmkitError
from vlmkit.model import Model
from vlmkit.pipeline import Pipeline
from vlmkit.running.image_detail import sized
from vlmkit.seams.prompt import MediaSlot, Prompt
from vlmkit.seams.tokenizer import PLAIN
from vlmkit.settings.image_tokens import ImageTokens
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.testing import TokenizerContract
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder

FAILURES = (AssertionError, VlmkitError, pytest.fail.Exception)


def model(tokenizer: MockTokenizer | None = None, **tokens: int) -> Model:
    return Model(
        Pipeline(
            tokenizer=tokenizer or MockTokenizer(),
            engine=MockEngine(),
            media_encoder=MockVisionEncoder(),
            settings=PipelineSettings(image_tokens=ImageTokens(**tokens)),
        )
    )


def image(width: int = 8, height: int = 6) -> Image:
    return Image.open(PIL.Image.new("RGB", (width, height), "teal"))


def test_an_image_may_say_how_large_it_is_shown() -> None:
    small = ImagePart(image(), ImageOptions(max_tokens=2))
    with model() as mock:
        done = mock.generate("?", images=[image(), small])

    assert done.usage.image_tokens == (4, 2)
    assert [line.split()[2] for line in done.text.splitlines()[:2]] == ["8x6", "4x3"]


def test_only_what_differs_is_encoded_anew() -> None:
    small = ImagePart(image(), ImageOptions(detail="low"))
    enough = ImagePart(image(), ImageOptions(max_tokens=9))
    with model(low=1) as mock:
        for _ in range(2):
            mock.generate("?", images=[image(), small, enough])
        counters = mock.stats().counters

    assert counters["num_media_encoded"] == 2


def test_an_answer_tells_how_each_image_was_shown() -> None:
    small = ImagePart(image(40, 20), ImageOptions(max_tokens=2))
    with model() as mock:
        mock.generate("?", images=[image()])
        usage = mock.generate("!", images=[image(), small]).usage

    assert [(shown.num_tokens, shown.is_cached) for shown in usage.images] == [
        (4, True),
        (2, False),
    ]
    transforms = [shown.transform for shown in usage.images]
    assert [each.used_size for each in transforms if each] == [(6, 8), (10, 20)]


@pytest.mark.parametrize(
    ("asked", "tokens", "most"),
    [
        (ImageOptions(), ImageTokens(), None),
        (ImageOptions(), ImageTokens(auto=9), 9),
        (ImageOptions(detail="low"), ImageTokens(), 256),
        (ImageOptions(detail="high"), ImageTokens(auto=9), None),
        (ImageOptions(detail="high"), ImageTokens(high=7), 7),
        (ImageOptions(detail="low", wanted_tokens=300), ImageTokens(), 256),
        (ImageOptions(detail="low", wanted_tokens=30), ImageTokens(), 30),
        (ImageOptions(max_tokens=5), ImageTokens(auto=9), 5),
        (ImageOptions(max_tokens=50), ImageTokens(auto=9), 9),
    ],
)
def test_a_tokenizer_gets_a_number_for_a_detail(
    asked: ImageOptions, tokens: ImageTokens, most: int | None
) -> None:
    ((part, _),) = (m.parts for m in sized([Message.of("user", "?", [pair(asked)])], tokens))

    assert isinstance(part, ImagePart)
    assert (part.options.detail, part.options.most_tokens) == ("auto", most)
    assert part.options.max_tokens == asked.max_tokens


def pair(options: ImageOptions) -> ImagePart:
    return ImagePart(image(), options)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"detail": "huge"}, "detail"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"wanted_tokens": 1.5}, "wanted_tokens"),
        ({"processor": {str(n): n for n in range(MAX_PROCESSOR_OPTIONS + 1)}}, "processor"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ImageOptions(**fields)
    assert caught.value.param == param


class KnowsNoSizes(MockTokenizer):
    @property
    def honours(self) -> frozenset[Any]:
        return frozenset()


def test_a_tokenizer_that_knows_no_sizes_is_never_asked_for_one() -> None:
    with model(KnowsNoSizes(), low=1) as mock:
        for options in (ImageOptions(max_tokens=9), ImageOptions(processor={"max_pixels": 1})):
            with pytest.raises(RequestError, match="not supported by this model's tokenizer"):
                mock.generate("?", images=[ImagePart(image(), options)])
        assert mock.generate("?", images=[pair(ImageOptions(detail="low"))]).text


# Broken ones.


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


class OnTokenizer(TokenizerContract):
    def __init__(self, kind: type[MockTokenizer]) -> None:
        self._kind = kind

    def make(self) -> MockTokenizer:
        return self._kind()

    def smaller(self) -> dict[str, int]:
        return {"max_dynamic_patch": 1}


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (ForgetsBounds, "an_image_keeps_to_its_tokens_or_is_refused"),
        (TakesBoundsForWishes, "an_image_keeps_to_its_tokens_or_is_refused"),
        (TakesBoundsForWishes, "a_refused_bound_names_which_image_it_is"),
        (TellsNotWhich, "a_refused_bound_names_which_image_it_is"),
        (TakesWishesForBounds, "a_wish_is_never_refused"),
        (ForgetsWishes, "a_wish_makes_pictures_smaller"),
        (TellsByThePictureAlone, "one_picture_in_two_sizes_is_two_pictures"),
        (ForgetsPlaces, "who_knows_how_places_are_written_says_it"),
        (PassesOverLimits, "limits_by_the_processors_names_are_taken_or_refused"),
    ],
)
def test_a_tokenizer_that_forgets_what_it_claims_is_caught(
    kind: type[MockTokenizer], test: str
) -> None:
    with pytest.raises(FAILURES):
        getattr(OnTokenizer(kind), f"test_{test}")()
    getattr(OnTokenizer(MockTokenizer), f"test_{test}")()


def test_what_the_contract_asks_is_asked_of_every_option() -> None:
    asked = inspect.getsource(TokenizerContract.__mro__[2])
    for option in ("image_detail", "max_image_tokens", "mm_processor_kwargs", "return_places"):
        assert f'self._needs("{option}")' in asked
