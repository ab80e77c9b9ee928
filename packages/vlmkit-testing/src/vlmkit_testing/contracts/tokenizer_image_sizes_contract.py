"""What a tokenizer must do with image size limits, and with grounding."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from vlmkit.errors import ImageError, RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import Option
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.pictures import picture
from vlmkit_testing.contracts.tokenizer_subject import TokenizerSubject, tool

ODD_VALUES: tuple[Any, ...] = (None, True, "x", "", -1, 0, 1.5, 10**30, (), {}, {"x": 1})


class TokenizerImageSizesContract(TokenizerSubject):
    """Bounds are met or refused, preferences never refused, and sizes have different digests."""

    def smaller(self) -> Mapping[str, Any]:
        """Return limits, by the processor's names, under which an image has fewer tokens."""
        return {}

    def test_an_image_keeps_to_its_tokens_or_is_refused(self) -> None:
        """For any bound; images of another size have another digest."""
        self._needs("max_image_tokens")
        for image in self._pictures():
            num_tokens = self._slot(image).num_features
            sizes = {self._slot(image).digest: num_tokens}
            for bound in range(1, num_tokens + 2):
                try:
                    slot = self._slot(image, max_tokens=bound)
                except ImageError:
                    assert bound < num_tokens
                    continue
                assert 0 < slot.num_features <= bound
                assert sizes.setdefault(slot.digest, slot.num_features) == slot.num_features

    def test_a_bound_that_is_large_enough_changes_nothing(self) -> None:
        """Neither the prompt nor the digest."""
        self._needs("max_image_tokens")
        for image in self._pictures():
            plain = self._slot(image)
            same = self._slot(image, max_tokens=plain.num_features)
            assert same.digest == plain.digest
            _check_equal(same, plain)

    def test_a_refused_bound_names_which_image_it_is(self) -> None:
        """The second of the conversation, in one turn and in two."""
        self._needs("max_image_tokens")
        image, bounded = self._least()
        refused, other = ImagePart(image, bounded), picture(seed=1)
        answer = Message.of("assistant", "so")
        for messages in (
            [Message.of("user", "?", [other, refused])],
            [Message.of("user", "?", [other]), answer, Message.of("user", "?", [refused, other])],
        ):
            with pytest.raises(ImageError) as caught:
                self._prompt(messages)
            assert caught.value.index == 1

    def test_a_preferred_size_is_never_refused(self) -> None:
        """The image is made as small as possible."""
        self._needs_pictures()
        for image in self._pictures():
            plain, wanted = self._slot(image), self._slot(image, wanted_tokens=1)
            assert wanted.num_features <= plain.num_features
            if wanted.num_features == plain.num_features:
                assert wanted.digest == plain.digest

    def test_a_preferred_size_makes_images_smaller(self) -> None:
        """Some image; small ones stay as they are."""
        self._needs("image_detail")
        nums = [
            (self._slot(image, wanted_tokens=1).num_features, self._slot(image).num_features)
            for image in self._pictures()
        ]
        assert any(wanted < plain for wanted, plain in nums)

    def test_one_image_in_two_sizes_has_two_digests(self) -> None:
        """In one conversation and in two."""
        self._needs("image_detail")
        image = self._shrinking()
        small = ImageOptions(wanted_tokens=1)
        shown = self._shown([ImagePart(image), ImagePart(image, small), ImagePart(image)])
        alone = [self._slot(image), self._slot(image, wanted_tokens=1), self._slot(image)]
        assert len({slot.digest for slot in shown}) == 2
        for slot, other in zip(shown, alone, strict=True):
            assert slot.digest == other.digest
            _check_equal(slot, other)

    def test_each_image_of_a_prompt_has_its_own_size(self) -> None:
        """One image and another in any sizes that can be requested, in one prompt as alone."""
        self._needs_pictures()
        parts = [
            ImagePart(image, options)
            for image in (self._pictures()[0], self._shrunk())
            for options in self._sizes(image)
        ]
        alone = [self._shown([part])[0] for part in parts]
        for slot, own in zip(self._shown(parts), alone, strict=True):
            assert slot.digest == own.digest
            _check_equal(slot, own)

    def test_a_light_prompt_has_the_requested_sizes(self) -> None:
        """Its images have as many tokens as those of a whole prompt."""
        self._needs("light")
        image = self._shrunk()
        whole = self._shown([ImagePart(image, options) for options in self._sizes(image)])
        size = Image.of_size((image.width, image.height))
        parts = [ImagePart(size, options) for options in self._sizes(image)]
        messages = [Message("user", (*parts, TextPart("?")))]
        light = self.make().prompt(messages, options=PromptOptions(light=True)).media
        with contextlib.suppress(RequestError):  # this model takes no tools
            both = [
                self.make().prompt(messages, tools=tools, options=PromptOptions(light=True))
                for tools in (None, [tool()])
            ]
            plain = [self.make().prompt(self._conversation(), tools=t) for t in (None, [tool()])]
            assert len(both[1]) - len(both[0]) == len(plain[1]) - len(plain[0])
        assert [slot.num_features for slot in light] == [slot.num_features for slot in whole]

    def test_limits_by_the_processors_names_are_taken_or_refused(self) -> None:
        """Unknown ones are not ignored."""
        self._needs("mm_processor_kwargs")
        with pytest.raises(RequestError) as caught:
            self._slot(picture(), processor={"nobody_knows_this": 1})
        assert caught.value.param is not None
        assert "nobody_knows_this" not in str(caught.value)
        for name in self.smaller():
            for value in ODD_VALUES:  # another error would be one of the server
                with contextlib.suppress(RequestError, ImageError):
                    self._slot(picture(), processor={name: value})
        if limits := self.smaller():
            with pytest.raises(RequestError):
                self._slot(picture(), processor={**limits, "nobody_knows_this": 1})
            image = self._shrinking()
            plain, small = self._slot(image), self._slot(image, processor=limits)
            assert small.num_features < plain.num_features
            assert small.digest != plain.digest

    def test_a_known_grounding_format_is_stated(self) -> None:
        """With each prompt that has an image."""
        self._needs("return_places")
        assert self._prompt(self._conversation()).place_format is not None

    # Helpers

    def _needs_pictures(self) -> None:
        if not self.takes_images:
            pytest.skip("this model takes no images")

    def _needs(self, option: Option) -> None:
        self._needs_pictures()
        if option not in self.make().honours:
            pytest.skip(f"this tokenizer does not honour {option}")

    def _pictures(self) -> list[Image]:
        return [picture(), picture(64, 48), picture(96, 40), picture(20, 400)]

    def _shrinking(self) -> Image:
        """Return an image that a preferred size makes smaller."""
        return next(
            image
            for image in self._pictures()
            if self._slot(image, wanted_tokens=1).num_features < self._slot(image).num_features
        )

    def _shrunk(self) -> Image:
        """Return the image to which a preferred size makes the largest difference."""

        def num_saved(image: Image) -> int:
            plain, small = self._slot(image), self._slot(image, wanted_tokens=1)
            return plain.num_features - small.num_features

        return max(self._pictures(), key=num_saved)

    def _sizes(self, image: Image) -> list[ImageOptions]:
        """Return the options of sizes that are possible for an image, different ones first."""
        honours, small = self.make().honours, self._slot(image, wanted_tokens=1).num_features
        sizes = [ImageOptions()]
        if "image_detail" in honours:
            sizes.append(ImageOptions(wanted_tokens=1))
        if "max_image_tokens" in honours:
            sizes.append(ImageOptions(max_tokens=small))
        if "mm_processor_kwargs" in honours and self.smaller():
            sizes.append(ImageOptions(processor=dict(self.smaller())))
        return sizes * 2

    def _least(self) -> tuple[Image, ImageOptions]:
        """Return an image, and a bound that it exceeds."""
        for image in self._pictures():
            least = self._slot(image, wanted_tokens=1).num_features
            if least > 1:
                return image, ImageOptions(max_tokens=least - 1)
        pytest.skip("this model makes any picture a single token")

    def _slot(self, image: Image, **options: Any) -> MediaSlot:
        return self._shown([ImagePart(image, ImageOptions(**options))])[0]

    def _shown(self, parts: Sequence[ImagePart]) -> tuple[MediaSlot, ...]:
        prompt: Prompt = self._prompt([Message("user", (*parts, TextPart("?")))])
        return prompt.media


def _check_equal(slot: MediaSlot, other: MediaSlot) -> None:
    assert slot.num_features == other.num_features
    assert slot.inputs.keys() == other.inputs.keys()
    for name, array in slot.inputs.items():
        np.testing.assert_array_equal(to_numpy(array), to_numpy(other.inputs[name]))
