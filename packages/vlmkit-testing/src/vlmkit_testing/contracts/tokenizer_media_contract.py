"""What a tokenizer must do with images and other media."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.running.prompting.prepared_images import prepared_images, with_prepared
from vlmkit.types.image import Image
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, Message, Part, Role, TextPart, parts_of
from vlmkit.types.prepared_image import PreparedImage
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.pictures import awkward_pictures, picture
from vlmkit_testing.contracts.tokenizer_subject import TokenizerSubject

WORDS = ("fox", "hen", "owl", "cat", "yak")


class Unheard:
    """A medium that no model supports."""

    digest = bytes(32)
    num_bytes = 1


class TokenizerMediaContract(TokenizerSubject):
    """The slots of a prompt, and refusals."""

    def test_a_file_without_a_loader_is_refused(self) -> None:
        """Its content is unknown, so there must be no answer; in any turn."""
        for messages in _conversations_with(FilePart(b"fox")):
            with pytest.raises(RequestError):
                self._prompt(messages)

    def test_a_text_model_refuses_images(self) -> None:
        """The error is one that clients see."""
        if self.takes_images:
            pytest.skip("this model takes images")
        for messages in _conversations_with(ImagePart(picture())):
            with pytest.raises(RequestError):
                self._prompt(messages)

    # Media

    def media(self) -> list[MediaPart]:
        """Return different media of other kinds that the model supports; none by default."""
        return []

    def test_media_of_unknown_kinds_are_refused_by_name(self) -> None:
        """They are neither left out nor treated as another kind."""
        for messages in _conversations_with(MediaPart("unheard_of", Unheard())):
            with pytest.raises(RequestError, match="unheard_of"):
                self._prompt(messages)

    def test_slots_of_media_have_their_kind_and_tell_them_apart(self) -> None:
        """Digests do not depend on the position, and each slot has tokens in the prompt."""
        parts = self.media()
        if not parts:
            pytest.skip("this model takes no media but images")
        prompt = self._prompt([Message.of("user", "hello", media=parts)])
        self._check_places(prompt)
        self._check_banned(prompt)
        assert {slot.kind for slot in prompt.media} == {part.kind for part in parts}
        alone = [self._prompt([Message.of("user", "?", media=[part])]).media for part in parts]
        digests = [tuple(slot.digest for slot in slots) for slots in alone]
        assert len(set(digests)) == len(parts)
        assert [slot.digest for slot in prompt.media] == [d for own in digests for d in own]

    # Images

    def test_slots_are_ordered_disjoint_and_within_the_prompt(self) -> None:
        """Each has at least as many tokens as feature rows."""
        self._needs_images()
        prompt = self._prompt([Message.of("user", "hello", [picture(seed=i) for i in range(3)])])
        assert len(prompt.media) == 3
        assert {slot.kind for slot in prompt.media} == {"image"}
        self._check_places(prompt)

    def test_placeholders_are_never_sampled(self) -> None:
        """A placeholder for features has no meaning in an answer."""
        self._needs_images()
        self._check_banned(self._prompt([Message.of("user", "?", [picture(), picture(64, 48)])]))

    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
    def test_images_of_any_role_have_their_slots_or_are_refused(self, role: Role) -> None:
        """None is left out or repeated."""
        self._needs_images()
        shown = (ImagePart(picture(seed=1)), TextPart("so"), ImagePart(picture(seed=2)))
        *called, result = self._called("a")
        turns = {
            "system": [Message("system", shown), self._asked("?")],
            "user": [Message("user", shown)],
            "assistant": [Message("user", shown[1:]), Message("assistant", shown[:1])],
            "tool": [*called, Message("tool", shown, result.call_id)],
        }[role]
        asked = [part.image for part in parts_of(turns) if isinstance(part, ImagePart)]
        try:
            slots = self._prompt(turns).media
        except RequestError:
            return
        assert [slot.digest for slot in slots] == [self._digest(image) for image in asked]

    def test_images_of_a_result_stay_with_its_text(self) -> None:
        """Results of parallel calls may come in any order, with any number of images each."""
        self._needs_images()
        seen: dict[tuple[object, ...], Sequence[Sequence[int]]] = {}
        shares = (*itertools.permutations([(1,), (2,), (3,)]), *_rotations([(), (1,), (2, 3)]))
        for shown, order in itertools.product(shares, itertools.permutations(range(3))):
            try:
                prompt = self._prompt(self._with_shown_results(shown, order))
            except RequestError:
                continue
            identity = prompt.token_ids, *(slot.digest for slot in prompt.media)
            assert seen.setdefault(identity, shown) == shown, "images of results are exchanged"

    def test_an_image_stands_where_its_message_puts_it(self) -> None:
        """Before the text, or after it."""
        self._needs_images()
        if not self.keeps_places:
            pytest.skip("this model's template chooses where images stand")
        text, image = TextPart("a rather long text"), ImagePart(picture())
        before = self._prompt([Message("user", (image, text))]).media[0]
        after = self._prompt([Message("user", (text, image))]).media[0]
        assert before.start < after.start

    def test_images_stand_between_the_texts_around_them(self) -> None:
        """However many, over parts and over turns."""
        self._needs_images()
        if not self.keeps_places:
            pytest.skip("this model's template chooses where images stand")
        for layouts in (["tit"], ["titit"], ["iitti"], ["tti", "iit"], ["ti", "titi"]):
            messages, gaps = _laid_out(layouts)
            prompt = self._prompt(messages)
            ends = [0, *(n for slot in prompt.media for n in (slot.start, slot.stop)), len(prompt)]
            texts = [
                self.make().decode(prompt.token_ids[start:stop])
                for start, stop in zip(ends[::2], ends[1::2], strict=True)
            ]
            assert [_words_in(text) for text in texts] == gaps, layouts

    def test_slots_follow_the_order_of_the_images(self) -> None:
        """Over parts and over turns."""
        self._needs_images()
        a, b = picture(seed=1), picture(seed=2)
        digests = [self._digest(a), self._digest(b)]
        one_turn = self._prompt([Message.of("user", "?", [a, b])])
        assert [slot.digest for slot in one_turn.media] == digests
        turns = [Message.of("user", "?", [a]), Message.of("assistant", "!")]
        two_turns = self._prompt([*turns, Message.of("user", "?", [b])])
        assert [slot.digest for slot in two_turns.media] == digests

    def test_digests_depend_on_the_image_alone(self) -> None:
        """Equal images have equal digests at any position; different ones do not."""
        self._needs_images()
        digests = [self._digest(picture(seed=seed)) for seed in (1, 2, 1)]
        assert digests[0] == digests[2] != digests[1]
        assert self._digest(picture(48, 64)) != self._digest(picture(64, 48))

    def test_equal_pictures_have_equal_inputs(self) -> None:
        """The rest of the conversation does not change the encoder's inputs."""
        self._needs_images()
        alone = self._prompt([Message.of("user", "?", [picture()])]).media[0]
        images = [picture(96, 40, seed=3), picture()]
        among = self._prompt([Message.of("user", "hello", images)]).media[1]
        assert alone.inputs.keys() == among.inputs.keys()
        for name, array in alone.inputs.items():
            np.testing.assert_array_equal(to_numpy(array), to_numpy(among.inputs[name]))

    def test_a_digest_covers_every_pixel(self) -> None:
        """One step of one colour changes it: caches compare digests alone."""
        self._needs_images()
        pixels = np.asarray(picture(200, 240).to_pil())
        digests = {self._digest(Image.open(pixels))}
        for place in ((0, 0, 0), (101, 77, 1), (199, 239, 2)):
            other = pixels.copy()
            other[place] ^= 1
            digests.add(self._digest(Image.open(other)))
        assert len(digests) == 4

    def test_the_encoder_gets_the_picture(self) -> None:
        """Different images have different inputs, in one prompt and in two."""
        self._needs_images()
        one, other = picture(seed=1), picture(seed=2)
        slots = self._prompt([Message.of("user", "?", [one, other])]).media
        assert not _equal(slots[0], slots[1])
        assert not _equal(self._slot_of(one), self._slot_of(other))

    def test_inputs_of_an_earlier_prompt_stay_as_they_are(self) -> None:
        """They may wait while other prompts are built."""
        self._needs_images()
        slot = self._slot_of(picture(seed=1))
        before = {name: to_numpy(array) for name, array in slot.inputs.items()}
        self._slot_of(picture(seed=2))
        for name, array in slot.inputs.items():
            np.testing.assert_array_equal(to_numpy(array), before[name])

    def test_a_slot_that_is_used_again_gives_the_same_prompt(self) -> None:
        """At another place, beside other images, and without pixels."""
        self._needs_images()
        images = [picture(96, 40, seed=3), picture(seed=1), picture(200, 31)]
        parts = (ImagePart(images[0]), TextPart("hello"), ImagePart(images[1]))
        turns = [Message("user", parts), Message.of("assistant", "so")]
        turns.append(Message.of("user", "?", images[2:]))
        whole, known = self._prompt(turns), list[PreparedImage | None]()
        for image in images:
            known += prepared_images(self._prompt([Message.of("user", "?", [image])]), [image])
        if None in known:
            pytest.skip("this tokenizer does not offer slots to later prompts: set around")
        for is_known in itertools.product([False, True], repeat=len(images)):
            used = [each if is_ else None for each, is_ in zip(known, is_known, strict=True)]
            again = self._prompt(with_prepared(turns, used))
            assert again.token_ids == whole.token_ids
            for slot, other in zip(again.media, whole.media, strict=True):
                assert replace(slot, inputs={}) == replace(other, inputs={})
                assert _equal(slot, other)

    def test_a_transform_maps_the_image_to_its_tokens(self) -> None:
        """It converts regions of answers to the image's own pixels."""
        self._needs_images()
        for image in (picture(), picture(64, 48), picture(200, 31)):
            size = (image.height, image.width)
            transform = self._slot_of(image).transform
            if transform is None:
                pytest.skip("this model's processor does not say what it does")
            assert transform.source_size == transform.upright_size == size
            assert not transform.turned
            assert min(transform.used_size) > 0
            used = tuple(u / s for u, s in zip(transform.used_size, size, strict=True))
            assert transform.scale == pytest.approx(used, rel=0.05, abs=0.02)

    def test_awkward_pictures_are_taken_or_refused(self) -> None:
        """The only exception is an ImageError."""
        self._needs_images()
        for image in awkward_pictures():
            try:
                prompt = self._prompt([Message.of("user", "?", [image])])
            except RequestError:
                continue
            assert len(prompt.media) == 1
            assert prompt.media[0].num_features > 0

    def test_sizes_alone_give_a_light_prompt_the_same_tokens(self) -> None:
        """And the same slots, without inputs for an encoder."""
        self._needs_images()
        if "light" not in self.make().honours:
            pytest.skip("this tokenizer does not honour light")
        for whole in [picture(), picture(200, 31), picture(300, 500), *awkward_pictures()]:
            images = [whole, picture(96, 40)]
            sizes = [Image.of_size((image.width, image.height)) for image in images]
            try:
                prompt = self._prompt([Message.of("user", "hello", images)])
            except RequestError as error:
                with pytest.raises(type(error)):
                    self._light(sizes)
                continue
            light = self._light(sizes)
            assert light.token_ids == prompt.token_ids
            assert [(s.kind, s.start, s.stop, s.num_features) for s in light.media] == [
                (s.kind, s.start, s.stop, s.num_features) for s in prompt.media
            ]
            assert not any(slot.digest or slot.inputs for slot in light.media)

    def _with_shown_results(
        self, shown: Sequence[Sequence[int]], order: Sequence[int]
    ) -> list[Message]:
        """Return a conversation with parallel calls, and results of a text and images each.

        Args:
            shown: the seeds of the images in the result of each call.
            order: the calls in the order of their results.
        """
        calls = tuple(ToolCallPart(f"call{i:05}", "find", f'{{"what": {i}}}') for i in range(3))
        results = [
            Message.of("tool", WORDS[i], [picture(seed=seed) for seed in shown[i]]) for i in order
        ]
        named = [
            replace(result, call_id=calls[i].id) for result, i in zip(results, order, strict=True)
        ]
        return [Message.of("user", "?"), Message("assistant", calls), *named]

    def _light(self, sizes: list[Image]) -> Prompt:
        messages = [Message.of("user", "hello", sizes)]
        return self.make().prompt(messages, options=PromptOptions(light=True))

    def _slot_of(self, image: Image) -> MediaSlot:
        return self._prompt([Message.of("user", "?", [image])]).media[0]

    def _digest(self, image: Image) -> bytes:
        return self._slot_of(image).digest

    def _check_banned(self, prompt: Prompt) -> None:
        banned = self.make().banned_ids
        for slot in prompt.media:
            ids = prompt.token_ids[slot.start : slot.stop]
            assert sum(i in banned for i in ids) >= slot.num_features

    def _check_places(self, prompt: Prompt) -> None:
        end = 0
        for slot in prompt.media:
            assert end <= slot.start < slot.stop <= len(prompt)
            assert 0 < slot.num_features <= slot.stop - slot.start
            assert slot.num_encoded >= 0
            assert slot.inputs
            assert all(to_numpy(array).size for array in slot.inputs.values())
            assert len(slot.digest) == 32
            end = slot.stop

    def _needs_images(self) -> None:
        if not self.takes_images:
            pytest.skip("this model takes no images")


def _conversations_with(part: Part) -> list[list[Message]]:
    """Return conversations whose first or last turn has a part."""
    shown, other = Message("user", (part, TextPart("hello"))), Message.of("user", "and now?")
    answer = Message.of("assistant", "so")
    return [[shown], [shown, answer, other], [other, answer, shown]]


def _rotations(shares: Sequence[Sequence[int]]) -> list[tuple[Sequence[int], ...]]:
    """Return the images of each result, moved by any number of results."""
    return [(*shares[num:], *shares[:num]) for num in range(len(shares))]


def _laid_out(layouts: Sequence[str]) -> tuple[list[Message], list[list[str]]]:
    """Return a conversation, and the words before, between and behind its images.

    Args:
        layouts: the parts of each turn of the user, ``t`` for a text and ``i`` for an image.
    """
    words, seeds = iter(WORDS), itertools.count()
    messages, gaps = list[Message](), [list[str]()]
    for layout in layouts:
        parts: list[Part] = []
        for kind in layout:
            if kind == "i":
                parts.append(ImagePart(picture(seed=next(seeds))))
                gaps.append([])
            else:
                gaps[-1].append(next(words))
                parts.append(TextPart(f"{gaps[-1][-1]}. "))
        messages += [Message("user", tuple(parts)), Message.of("assistant", "so")]
    return messages[:-1], gaps


def _words_in(text: str) -> list[str]:
    """Return those of ``WORDS`` that a text has, in order."""
    return sorted((word for word in WORDS if word in text), key=text.index)


def _equal(slot: MediaSlot, other: MediaSlot) -> bool:
    """Return whether two slots have equal encoder inputs."""
    return slot.inputs.keys() == other.inputs.keys() and all(
        np.array_equal(to_numpy(array), to_numpy(other.inputs[name]))
        for name, array in slot.inputs.items()
    )
