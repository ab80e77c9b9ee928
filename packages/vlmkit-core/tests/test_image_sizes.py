"""Images in fewer tokens: options of the Python API."""

import inspect
from typing import Any

import PIL.Image
import pytest

from vlmkit.errors import RequestError
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.prompting.media import resolve_detail
from vlmkit.settings.image_tokens import ImageTokens
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.image_options import MAX_PROCESSOR_OPTIONS, ImageOptions
from vlmkit.types.message import ImagePart, Message
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing.contracts.tokenizer_image_sizes_contract import TokenizerImageSizesContract


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


def test_an_image_can_limit_its_tokens() -> None:
    small = ImagePart(image(), ImageOptions(max_tokens=2))
    with model() as mock:
        done = mock.generate("?", images=[image(), small])

    assert done.usage.image_tokens == (4, 2)
    assert [line.split()[2] for line in done.text.splitlines()[:2]] == ["8x6", "4x3"]


def test_only_images_of_different_sizes_are_encoded_again() -> None:
    small = ImagePart(image(), ImageOptions(detail="low"))
    enough = ImagePart(image(), ImageOptions(max_tokens=9))
    with model(low=1) as mock:
        for _ in range(2):
            mock.generate("?", images=[image(), small, enough])
        counters = mock.stats().counters

    assert counters["num_media_encoded"] == 2


def test_usage_states_how_each_image_was_shown() -> None:
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
    ("requested", "tokens", "most"),
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
def test_a_detail_is_resolved_to_a_number_of_tokens(
    requested: ImageOptions, tokens: ImageTokens, most: int | None
) -> None:
    ((part, _),) = (
        m.parts for m in resolve_detail([Message.of("user", "?", [image_part(requested)])], tokens)
    )

    assert isinstance(part, ImagePart)
    assert (part.options.detail, part.options.most_tokens) == ("auto", most)
    assert part.options.max_tokens == requested.max_tokens


def image_part(options: ImageOptions) -> ImagePart:
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
def test_an_invalid_image_option_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ImageOptions(**fields)
    assert caught.value.param == param


class TokenizerWithoutSizes(MockTokenizer):
    @property
    def honours(self) -> frozenset[Any]:
        return frozenset()


def test_size_options_are_refused_for_a_tokenizer_without_them() -> None:
    with model(TokenizerWithoutSizes(), low=1) as mock:
        for options in (ImageOptions(max_tokens=9), ImageOptions(processor={"max_pixels": 1})):
            with pytest.raises(RequestError, match="not supported by this model's tokenizer"):
                mock.generate("?", images=[ImagePart(image(), options)])
        assert mock.generate("?", images=[image_part(ImageOptions(detail="low"))]).text


def test_the_contract_covers_every_image_option() -> None:
    requested = inspect.getsource(TokenizerImageSizesContract)
    for option in ("image_detail", "max_image_tokens", "mm_processor_kwargs", "return_places"):
        assert f'self._needs("{option}")' in requested
