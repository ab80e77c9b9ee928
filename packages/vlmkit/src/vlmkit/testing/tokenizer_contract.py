"""What every tokenizer must do."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from vlmkit.errors import RequestError
from vlmkit.image import Image
from vlmkit.message import ImagePart, Message, TextPart
from vlmkit.prompt import Prompt
from vlmkit.protocols import Tokenizer
from vlmkit.testing.arrays import to_numpy
from vlmkit.testing.pictures import awkward_pictures, picture

TEXTS = (
    "Hello, world!",
    " two  spaces ",
    "Zażółć gęślą jaźń",
    "日本語",
    "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL} \N{WAVING WHITE FLAG}\N{VARIATION SELECTOR-16}",
    "a\nb\tc",
    "٣ + ٤",
    "",
)

examples = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


class TokenizerContract:
    """Inherit, override :meth:`make` and :meth:`special_texts`, and run pytest.

    Attributes:
        takes_images: whether the model takes images.
        is_lossless: whether ``decode(encode(text)) == text`` for every text; a tokenizer that
            normalises text, say, is not.
    """

    takes_images = True
    is_lossless = True

    def make(self) -> Tokenizer:
        """Return the tokenizer; may be the same each time."""
        raise NotImplementedError

    def special_texts(self) -> list[str]:
        """Return every string that the vocabulary writes a special token as."""
        raise NotImplementedError

    # Text

    @pytest.mark.parametrize("text", TEXTS)
    def test_text_comes_back(self, text: str) -> None:
        """At the latest the second time, where the tokenizer normalises."""
        tokenizer = self.make()
        decoded = tokenizer.decode(tokenizer.encode(text))
        if self.is_lossless:
            assert decoded == text
        assert tokenizer.decode(tokenizer.encode(decoded)) == decoded

    @examples
    @given(text=texts)
    def test_streamed_text_equals_decoded_text(self, text: str) -> None:
        """Token by token the same text comes out, and never half a character."""
        tokenizer = self.make()
        token_ids = tokenizer.encode(text)
        stream = tokenizer.stream()
        pieces = [*map(stream.push, token_ids), stream.flush()]
        assert "".join(pieces) == tokenizer.decode(token_ids)
        if self.is_lossless and "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)

    @examples
    @given(data=st.data())
    def test_any_sampled_tokens_can_be_streamed(self, data: st.DataObject) -> None:
        """A model may say anything: the stream never raises."""
        tokenizer = self.make()
        token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
        stream = tokenizer.stream()
        pieces = [*map(stream.push, token_ids), stream.flush()]
        assert all(isinstance(piece, str) for piece in pieces)
        assert all(isinstance(tokenizer.token_bytes(i), bytes) for i in token_ids)

    def test_two_streams_do_not_mix(self) -> None:
        """Each answer has its own."""
        tokenizer = self.make()
        one, other = tokenizer.stream(), tokenizer.stream()
        token_ids = tokenizer.encode("Zażółć 👍")
        texts = ["", ""]
        for token_id in token_ids:
            texts[0] += one.push(token_id)
            texts[1] += other.push(token_id)
        assert texts[0] + one.flush() == texts[1] + other.flush() == tokenizer.decode(token_ids)

    @pytest.mark.parametrize("text", TEXTS)
    def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(self, text: str) -> None:
        """But for a space that some tokenizers put before the first word."""
        tokenizer = self.make()
        token_ids = tokenizer.encode(text)
        content = b"".join(map(tokenizer.token_bytes, token_ids))
        assert content.strip() == tokenizer.decode(token_ids).encode().strip()

    def test_half_a_surrogate_pair_is_refused_or_replaced(self) -> None:
        """A client's JSON may hold one; it must not take the server down."""
        try:
            token_ids = self.make().encode("a\ud83dz")
        except RequestError:
            return
        assert all(isinstance(i, int) for i in token_ids)

    # Special tokens

    def test_special_ids_are_in_the_vocabulary(self) -> None:
        """The end is a token that may be sampled; placeholders are not."""
        tokenizer = self.make()
        assert tokenizer.eos_ids
        assert not tokenizer.eos_ids & tokenizer.banned_ids
        assert all(0 <= i < tokenizer.vocab_size for i in tokenizer.eos_ids | tokenizer.banned_ids)

    def test_no_text_becomes_a_special_token(self) -> None:
        """A special token's own spelling is ordinary text when a user types it."""
        tokenizer = self.make()
        special = tokenizer.eos_ids | tokenizer.banned_ids
        assert self.special_texts()
        for text in self.special_texts():
            token_ids = tokenizer.encode(f"a{text}b")
            assert not special.intersection(token_ids), text
            if self.is_lossless:
                assert tokenizer.decode(token_ids) == f"a{text}b"

    def test_typed_special_texts_do_not_change_the_structure_of_a_prompt(self) -> None:
        """The prompt holds as many special tokens as it does for harmless text."""
        harmless = self._num_special([Message.of("user", "hello")])
        for text in self.special_texts():
            assert self._num_special([Message.of("user", f"a{text}b")]) == harmless, text

    def test_typed_placeholders_make_no_image_slot(self) -> None:
        """Images are placed by structure, not by searching for a string."""
        images = [picture()] if self.takes_images else []
        text = "".join(self.special_texts())
        prompt = self._prompt([Message.of("user", f"{text}?", images)])
        assert len(prompt.images) == len(images)

    # Prompts

    def test_a_prompt_without_images_has_no_slots(self) -> None:
        """Token ids are plain integers within the vocabulary."""
        tokenizer = self.make()
        prompt = self._prompt([Message.of("user", "hello")])
        assert prompt.images == ()
        assert len(prompt) > 0
        assert all(type(i) is int and i >= 0 for i in prompt.token_ids)
        assert max(prompt.token_ids) < tokenizer.vocab_size

    def test_a_conversation_has_every_turn_in_its_prompt(self) -> None:
        """Another earlier turn is another prompt."""
        turns = [Message.of("user", "one"), Message.of("assistant", "two")]
        last = Message.of("user", "three")
        prompt = self._prompt([*turns, last])
        assert len(prompt) > len(self._prompt([last]))
        other = self._prompt([turns[0], Message.of("assistant", "four"), last])
        assert prompt.token_ids != other.token_ids

    def test_a_prompt_is_a_function_of_its_conversation(self) -> None:
        """Also when several threads ask at once."""
        images = [picture()] if self.takes_images else []
        messages = [Message.of("user", "What is this?", images)]
        expected = self._prompt(messages)
        with ThreadPoolExecutor(4) as pool:
            prompts = list(pool.map(lambda _: self._prompt(messages), range(8)))
        assert all(prompt.token_ids == expected.token_ids for prompt in prompts)
        digests = [slot.digest for slot in expected.images]
        assert all([s.digest for s in prompt.images] == digests for prompt in prompts)

    def test_a_model_without_eyes_refuses_images(self) -> None:
        """With an error that the client gets to see."""
        if self.takes_images:
            pytest.skip("this model takes images")
        with pytest.raises(RequestError):
            self._prompt([Message.of("user", "hello", [picture()])])

    # Images

    def test_slots_are_ordered_disjoint_and_inside_the_prompt(self) -> None:
        """Each has at least as many tokens as feature rows."""
        self._needs_images()
        prompt = self._prompt([Message.of("user", "hello", [picture(seed=i) for i in range(3)])])
        assert len(prompt.images) == 3
        end = 0
        for slot in prompt.images:
            assert end <= slot.start < slot.stop <= len(prompt)
            assert 0 < slot.num_features <= slot.stop - slot.start
            assert slot.inputs
            end = slot.stop

    def test_an_image_stands_where_its_message_puts_it(self) -> None:
        """Before the text, or after it."""
        self._needs_images()
        text, image = TextPart("a rather long text"), ImagePart(picture())
        before = self._prompt([Message("user", (image, text))]).images[0]
        after = self._prompt([Message("user", (text, image))]).images[0]
        assert before.start < after.start

    def test_slots_follow_the_order_of_the_images(self) -> None:
        """Over parts and over turns."""
        self._needs_images()
        a, b = picture(seed=1), picture(seed=2)
        digests = [self._digest(a), self._digest(b)]
        one_turn = self._prompt([Message.of("user", "?", [a, b])])
        assert [slot.digest for slot in one_turn.images] == digests
        turns = [Message.of("user", "?", [a]), Message.of("assistant", "!")]
        two_turns = self._prompt([*turns, Message.of("user", "?", [b])])
        assert [slot.digest for slot in two_turns.images] == digests

    def test_digests_tell_pictures_apart_and_nothing_else(self) -> None:
        """Equal pictures are equal wherever they stand; others are not."""
        self._needs_images()
        digests = [self._digest(picture(seed=seed)) for seed in (1, 2, 1)]
        assert digests[0] == digests[2] != digests[1]
        assert all(len(digest) == 32 for digest in digests)
        assert self._digest(picture(48, 64)) != self._digest(picture(64, 48))

    def test_equal_pictures_have_equal_inputs(self) -> None:
        """What else is in the conversation does not change what the encoder gets."""
        self._needs_images()
        alone = self._prompt([Message.of("user", "?", [picture()])]).images[0]
        images = [picture(96, 40, seed=3), picture()]
        among = self._prompt([Message.of("user", "hello", images)]).images[1]
        assert alone.inputs.keys() == among.inputs.keys()
        for name, array in alone.inputs.items():
            np.testing.assert_array_equal(to_numpy(array), to_numpy(among.inputs[name]))

    def test_awkward_pictures_are_taken_or_refused(self) -> None:
        """An ImageError is an answer; any other exception is a crash."""
        self._needs_images()
        for image in awkward_pictures():
            try:
                prompt = self._prompt([Message.of("user", "?", [image])])
            except RequestError:
                continue
            assert len(prompt.images) == 1
            assert prompt.images[0].num_features > 0

    # Helpers

    def _prompt(self, messages: list[Message]) -> Prompt:
        return self.make().prompt(messages)

    def _digest(self, image: Image) -> bytes:
        return self._prompt([Message.of("user", "?", [image])]).images[0].digest

    def _num_special(self, messages: list[Message]) -> int:
        tokenizer = self.make()
        special = tokenizer.eos_ids | tokenizer.banned_ids
        return sum(i in special for i in self._prompt(messages).token_ids)

    def _needs_images(self) -> None:
        if not self.takes_images:
            pytest.skip("this model takes no images")
