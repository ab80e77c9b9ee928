"""Tokenizers that break a promise about images and other media."""

import dataclasses
import hashlib
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from honest.tokenizer import AudioTokenizer, Noise, TextTokenizer

from broken.broken import Broken
from broken.changed_tokenizer import Changed, ChangedSlots, with_parts
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, Message, image_parts_of
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vocabulary import IMAGE
from vlmkit_testing import TokenizerContract


class SkipsFiles(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [with_parts(m, lambda part: not isinstance(part, FilePart)) for m in messages]


class SkipsImages(TextTokenizer):
    def prompt(self, messages: Seq[Message], **options: Any) -> Prompt:
        said = [with_parts(m, lambda part: not isinstance(part, ImagePart)) for m in messages]
        return super().prompt(said, **options)


class HasOneDigestForAllSounds(AudioTokenizer):
    def slot(self, media: Any, start: int) -> MediaSlot:
        return dataclasses.replace(super().slot(media, start), digest=bytes(32))


class NamesASoundAnImage(AudioTokenizer):
    def slot(self, media: Any, start: int) -> MediaSlot:
        return dataclasses.replace(super().slot(media, start), kind="image")


class GivesEachMediumOneToken(AudioTokenizer):
    def slot(self, media: Any, start: int) -> MediaSlot:
        slot = super().slot(media, start)
        return dataclasses.replace(slot, stop=slot.start + 1)


class DigestsThePosition(AudioTokenizer):
    def slot(self, media: Any, start: int) -> MediaSlot:
        slot = super().slot(media, start)
        digest = hashlib.sha256(slot.digest + bytes([start % 256])).digest()
        return dataclasses.replace(slot, digest=digest)


class AllowsAudioPlaceholders(AudioTokenizer):
    banned_ids = TextTokenizer.banned_ids - {260}


class AllowsImagePlaceholders(MockTokenizer):
    @property
    def banned_ids(self) -> frozenset[int]:
        return super().banned_ids - {IMAGE}


class NamesAnotherKind(ChangedSlots):
    def slot(self, slot: MediaSlot) -> MediaSlot:
        return dataclasses.replace(slot, kind="picture")


class SendsNoInputs(ChangedSlots):
    def slot(self, slot: MediaSlot) -> MediaSlot:
        return dataclasses.replace(slot, inputs={})


class CountsTooManyRows(ChangedSlots):
    def slot(self, slot: MediaSlot) -> MediaSlot:
        return dataclasses.replace(slot, num_features=slot.stop - slot.start + 1)


class DropsImagesOfTools(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [
            with_parts(m, lambda part: not isinstance(part, ImagePart)) if m.role == "tool" else m
            for m in messages
        ]


class SortsResultsWithoutTheirImages(Changed):
    """Orders the texts of results by their calls, and leaves the images in their places."""

    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        results = [message for message in messages if message.role == "tool"]
        by_call = iter(sorted(results, key=lambda message: message.call_id or ""))
        return [self.shown(m, next(by_call)) if m.role == "tool" else m for m in messages]

    def shown(self, result: Message, said: Message) -> Message:
        images = with_parts(result, lambda part: isinstance(part, ImagePart)).parts
        texts = with_parts(said, lambda part: not isinstance(part, ImagePart)).parts
        return dataclasses.replace(said, parts=(*images, *texts))


class ShowsSystemImagesTwice(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [
            dataclasses.replace(m, parts=m.parts * 2) if m.role == "system" else m for m in messages
        ]


class PutsImagesFirst(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [
            dataclasses.replace(
                m, parts=tuple(sorted(m.parts, key=lambda p: not isinstance(p, ImagePart)))
            )
            for m in messages
        ]


class DigestsAThumbnail(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        slots = []
        for slot, part in zip(made.media, image_parts_of(messages), strict=True):
            small = part.image.to_pil().resize((16, 16)).tobytes() + str(part.image).encode()
            slots.append(dataclasses.replace(slot, digest=hashlib.sha256(small).digest()))
        return dataclasses.replace(made, media=tuple(slots))


class DigestsTheSize(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        slots = [
            dataclasses.replace(slot, digest=hashlib.sha256(str(part.image).encode()).digest())
            for slot, part in zip(made.media, image_parts_of(messages), strict=True)
        ]
        return dataclasses.replace(made, media=tuple(slots))


class DependsOnItsNeighbours(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        num = np.array([len(prompt.media)])
        slots = [
            dataclasses.replace(slot, inputs={**slot.inputs, "num": num}) for slot in prompt.media
        ]
        return dataclasses.replace(prompt, media=tuple(slots))


class SendsInputsOfTheFirstImage(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        slots = [dataclasses.replace(slot, inputs=prompt.media[0].inputs) for slot in prompt.media]
        return dataclasses.replace(prompt, media=tuple(slots))


class SendsOnlyTheSize(ChangedSlots):
    def slot(self, slot: MediaSlot) -> MediaSlot:
        return dataclasses.replace(slot, inputs={"size": slot.inputs["size"]})


class ReusesItsBuffer(ChangedSlots):
    buffer = np.zeros(32, np.uint8)

    def slot(self, slot: MediaSlot) -> MediaSlot:
        self.buffer[:] = np.from_dlpack(slot.inputs["digest"])
        return dataclasses.replace(slot, inputs={**slot.inputs, "digest": self.buffer})


class SwapsHeightAndWidth(ChangedSlots):
    def slot(self, slot: MediaSlot) -> MediaSlot:
        assert slot.transform is not None
        turned = {
            name: getattr(slot.transform, name)[::-1] for name in ("source_size", "upright_size")
        }
        return dataclasses.replace(slot, transform=dataclasses.replace(slot.transform, **turned))


class DropsTheScale(ChangedSlots):
    def slot(self, slot: MediaSlot) -> MediaSlot:
        assert slot.transform is not None
        scale = tuple(3 * each for each in slot.transform.scale)
        transform = dataclasses.replace(slot.transform, scale=scale)
        return dataclasses.replace(slot, transform=transform)


class DividesBySmallSides(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        assert all(1 // (part.image.width // 4) >= 0 for part in image_parts_of(messages))
        return messages


class ChangesKnownImages(MockTokenizer):
    """Changes the slots of images that an earlier prompt had."""

    def known(self, slot: MediaSlot) -> MediaSlot:
        raise NotImplementedError

    def prompt(self, messages: Seq[Message], **options: Any) -> Prompt:
        made = super().prompt(messages, **options)
        images = [part.image for part in image_parts_of(messages)]
        media = [
            self.known(slot) if image.prepared else slot
            for slot, image in zip(made.media, images, strict=True)
        ]
        return dataclasses.replace(made, media=tuple(media))


class DropsTheTransformOfKnownImages(ChangesKnownImages):
    def known(self, slot: MediaSlot) -> MediaSlot:
        return dataclasses.replace(slot, transform=None)


class ShowsKnownImagesInBlack(ChangesKnownImages):
    def known(self, slot: MediaSlot) -> MediaSlot:
        black = {name: np.zeros_like(array) for name, array in slot.inputs.items()}
        return dataclasses.replace(slot, inputs=black)


class OnTextOnly(TokenizerContract):
    takes_images = False

    def __init__(self, kind: type[TextTokenizer]) -> None:
        self._kind = kind

    def make(self) -> TextTokenizer:
        return self._kind()

    def special_texts(self) -> list[str]:
        return ["<end>", "<system>", "<user>", "<answer>"]


class OnAudio(OnTextOnly):
    def media(self) -> list[MediaPart]:
        noises = (b"beep", b"beeq", b"beep" * 9)
        return [MediaPart("audio", Noise(samples)) for samples in noises]


OF_SOUNDS = "slots_of_media_have_their_kind_and_tell_them_apart"

BROKEN = (
    Broken(
        SkipsFiles,
        "A file without a loader is refused.",
        "a_file_without_a_loader_is_refused",
    ),
    Broken(
        SkipsImages,
        "A text model refuses images.",
        "a_text_model_refuses_images",
        honest=TextTokenizer,
        on=OnTextOnly,
    ),
    Broken(
        HasOneDigestForAllSounds,
        "Different media of any kind have different digests.",
        OF_SOUNDS,
        honest=AudioTokenizer,
        on=OnAudio,
    ),
    Broken(
        NamesASoundAnImage,
        "A slot names the kind of its medium.",
        OF_SOUNDS,
        honest=AudioTokenizer,
        on=OnAudio,
    ),
    Broken(
        GivesEachMediumOneToken,
        "A medium has a token for each of its rows.",
        OF_SOUNDS,
        honest=AudioTokenizer,
        on=OnAudio,
    ),
    Broken(
        DigestsThePosition,
        "The digest of a medium does not depend on its position.",
        OF_SOUNDS,
        honest=AudioTokenizer,
        on=OnAudio,
    ),
    Broken(
        AllowsAudioPlaceholders,
        "Placeholders of any medium are banned.",
        OF_SOUNDS,
        honest=AudioTokenizer,
        on=OnAudio,
    ),
    Broken(
        AllowsImagePlaceholders,
        "Image placeholders must never be sampled.",
        "placeholders_are_never_sampled",
    ),
    Broken(
        NamesAnotherKind,
        'The kind of an image is "image".',
        "slots_are_ordered_disjoint_and_within_the_prompt",
    ),
    Broken(
        SendsNoInputs,
        "A slot has the inputs of the encoder.",
        "slots_are_ordered_disjoint_and_within_the_prompt",
    ),
    Broken(
        CountsTooManyRows,
        "No slot has more rows than tokens.",
        "slots_are_ordered_disjoint_and_within_the_prompt",
    ),
    Broken(
        DropsImagesOfTools,
        "Every image has a slot, images of tools included.",
        "images_of_any_role_have_their_slots_or_are_refused",
    ),
    Broken(
        ShowsSystemImagesTwice,
        "Each image is shown once.",
        "images_of_any_role_have_their_slots_or_are_refused",
    ),
    Broken(
        SortsResultsWithoutTheirImages,
        "An image of a result stays with its text, whatever the order of the results.",
        "images_of_a_result_stay_with_its_text",
    ),
    Broken(
        PutsImagesFirst,
        "An image stays at its position in the message.",
        "an_image_stands_where_its_message_puts_it",
    ),
    Broken(
        DigestsAThumbnail,
        "A digest covers the whole image, not a thumbnail.",
        "a_digest_covers_every_pixel",
    ),
    Broken(
        DigestsTheSize,
        "Images of equal size have different digests.",
        "a_digest_covers_every_pixel",
    ),
    Broken(
        DependsOnItsNeighbours,
        "Other images of a prompt do not change an encoder input.",
        "equal_pictures_have_equal_inputs",
    ),
    Broken(
        SendsInputsOfTheFirstImage,
        "A slot has the arrays of its own medium.",
        "the_encoder_gets_the_picture",
    ),
    Broken(
        SendsOnlyTheSize,
        "Different images have different arrays.",
        "the_encoder_gets_the_picture",
    ),
    Broken(
        ReusesItsBuffer,
        "The arrays of a slot stay as they are.",
        "inputs_of_an_earlier_prompt_stay_as_they_are",
    ),
    Broken(
        SwapsHeightAndWidth,
        "Sizes are heights and widths, in this order.",
        "a_transform_maps_the_image_to_its_tokens",
    ),
    Broken(
        DropsTheScale,
        "The scale is the number of used pixels for each upright pixel.",
        "a_transform_maps_the_image_to_its_tokens",
    ),
    Broken(
        DropsTheTransformOfKnownImages,
        "A slot that is used again keeps its transform.",
        "a_slot_that_is_used_again_gives_the_same_prompt",
    ),
    Broken(
        ShowsKnownImagesInBlack,
        "A slot that is used again keeps its inputs.",
        "a_slot_that_is_used_again_gives_the_same_prompt",
    ),
    Broken(
        DividesBySmallSides,
        "An image that cannot be shown is refused with an ImageError.",
        "awkward_pictures_are_taken_or_refused",
        raises=(ZeroDivisionError,),
    ),
)
