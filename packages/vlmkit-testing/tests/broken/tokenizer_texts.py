"""Tokenizers that break a promise about texts and single tokens."""

import time
import unicodedata
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from broken.broken import Broken
from broken.changed_tokenizer import Changed, ChangedSlots
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.message import Message
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vocabulary import BEGIN, END, NUM_BYTES, SPELLINGS


class WritesSmallLetters(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text.lower(), adds_special=adds_special)


class LosesTheLastSpace(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return super().decode(token_ids).rstrip(" ")


class StripsWhatItEncodes(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text.rstrip(" "), adds_special=adds_special)


class ComposesLetters(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(unicodedata.normalize("NFC", text), adds_special=adds_special)


class UndoesLigatures(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text.replace("ﬁ", "fi"), adds_special=adds_special)


class TakesTheBeginningForAMark(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return super().decode(token_ids).encode().decode("utf-8-sig")


class EndsLinesItsOwnWay(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode("\n".join(text.splitlines()), adds_special=adds_special)


class EndsAtNul(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text.partition("\0")[0], adds_special=adds_special)


class CleansUp(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return super().decode(token_ids).replace(" ,", ",").replace(" ?", "?")


class SpacesHaveNoBytes(MockTokenizer):
    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id).strip()


class SpellsSpacesAsMarks(MockTokenizer):
    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id).replace(b" ", "▁".encode())


class CutsLongTexts(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text[:8192], adds_special=adds_special)


class CutsLongPrompts(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return Prompt(prompt.token_ids[-4096:], prompt.media)


class AlwaysMarksTheBeginning(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text, adds_special=True)


class CrashesOnSurrogates(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        text.encode()
        return super().encode(text, adds_special=adds_special)


class KnowsAsciiOnly(MockTokenizer):
    @property
    def vocab_size(self) -> int:
        return 128


class BansALetter(MockTokenizer):
    @property
    def banned_ids(self) -> frozenset[int]:
        return super().banned_ids | {ord("e")}


class ReturnsNumbersOfNumPy(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> Any:
        return list(np.array(super().encode(text, adds_special=adds_special), np.int64))


class CountsTokensThatAreNone(MockTokenizer):
    @property
    def vocab_size(self) -> int:
        return 512

    def token_bytes(self, token_id: int) -> bytes:
        if token_id >= NUM_BYTES:
            assert SPELLINGS[token_id]
        return super().token_bytes(token_id)


class EndsNowhere(MockTokenizer):
    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset()


class BansTheEnd(MockTokenizer):
    @property
    def banned_ids(self) -> frozenset[int]:
        return super().banned_ids | {END}


class BansWhatIsNoToken(MockTokenizer):
    @property
    def banned_ids(self) -> frozenset[int]:
        return super().banned_ids | {self.vocab_size}


class DecodesTheEnd(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return super().decode(token_ids) + "<|end|>" * list(token_ids).count(END)


class DecodesWhatBegins(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return "<|begin|>" * list(token_ids).count(BEGIN) + super().decode(token_ids)


class KeepsTheConversation(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        self.messages = messages
        time.sleep(0.002)
        return super().prompt(self.messages, tools=tools, options=options)


class SharesWhatItMakes(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        self.last = super().prompt(messages, tools=tools, options=options)
        time.sleep(0.002)
        return self.last


class DrawsItsDigests(ChangedSlots):
    def slot(self, slot: MediaSlot) -> MediaSlot:
        digest = np.random.default_rng().bytes(32)
        return MediaSlot(slot.start, slot.stop, digest, slot.inputs, slot.num_features)


BROKEN = (
    Broken(
        WritesSmallLetters,
        "The text of a text's tokens is that text.",
        "decoding_restores_the_text",
    ),
    Broken(
        LosesTheLastSpace,
        "decode() returns the whole text of tokens, its last space too.",
        "a_space_at_the_end_of_a_text_stays",
    ),
    Broken(
        StripsWhatItEncodes,
        "encode() returns the tokens of the whole text.",
        "a_space_at_the_end_of_a_text_stays",
    ),
    Broken(
        SpacesHaveNoBytes,
        "A token that is a space stands for its byte.",
        "the_bytes_of_the_tokens_are_the_bytes_of_the_text",
    ),
    Broken(
        ComposesLetters,
        "A letter and its accent stay two characters.",
        "decoding_restores_the_text",
    ),
    Broken(UndoesLigatures, "A ligature stays one character.", "decoding_restores_the_text"),
    Broken(
        TakesTheBeginningForAMark,
        "What stands at the beginning of a text is text, a byte order mark too.",
        "decoding_restores_the_text",
    ),
    Broken(EndsLinesItsOwnWay, "Lines end as they ended.", "decoding_restores_the_text"),
    Broken(EndsAtNul, "A text has any character, the first one too.", "decoding_restores_the_text"),
    Broken(CleansUp, "Spaces before signs are text.", "decoding_restores_the_text"),
    Broken(
        SpellsSpacesAsMarks,
        "token_bytes() returns bytes of the text, not of the vocabulary's own spelling.",
        "the_bytes_of_the_tokens_are_the_bytes_of_the_text",
    ),
    Broken(CutsLongTexts, "encode() cuts no text.", "a_long_text_is_never_cut"),
    Broken(CutsLongPrompts, "prompt() cuts no conversation.", "a_long_text_is_never_cut"),
    Broken(
        AlwaysMarksTheBeginning,
        "Nothing is put around a text, unless adds_special asks for it.",
        "no_tokens_are_added_around_a_text_by_default",
    ),
    Broken(
        CrashesOnSurrogates,
        "Any text is encoded, or refused with a RequestError.",
        "half_a_surrogate_pair_is_refused_or_replaced",
        raises=(UnicodeEncodeError,),
    ),
    Broken(
        KnowsAsciiOnly,
        "vocab_size counts every token that a text may have.",
        "every_token_of_a_text_is_in_the_vocabulary",
    ),
    Broken(
        BansALetter,
        "What is banned is no token of a text.",
        "every_token_of_a_text_is_in_the_vocabulary",
    ),
    Broken(
        ReturnsNumbersOfNumPy,
        "Token ids are plain integers.",
        "every_token_of_a_text_is_in_the_vocabulary",
    ),
    Broken(
        CountsTokensThatAreNone,
        "Every id under vocab_size can be decoded.",
        "every_token_of_the_vocabulary_can_be_decoded",
        raises=(KeyError,),
    ),
    Broken(EndsNowhere, "Some token ends an answer.", "special_ids_are_in_the_vocabulary"),
    Broken(BansTheEnd, "What ends an answer may be sampled.", "special_ids_are_in_the_vocabulary"),
    Broken(
        BansWhatIsNoToken,
        "Banned ids are of the vocabulary.",
        "special_ids_are_in_the_vocabulary",
    ),
    Broken(
        DecodesTheEnd,
        "decode() returns text without special tokens.",
        "decoded_text_is_without_special_tokens",
    ),
    Broken(
        DecodesWhatBegins,
        "Nor does what begins a conversation have a text.",
        "decoded_text_is_without_special_tokens",
    ),
    Broken(
        KeepsTheConversation,
        "Its methods are called from several threads at once.",
        "a_prompt_is_a_function_of_its_conversation",
    ),
    Broken(
        SharesWhatItMakes,
        "What one thread is given is not what another one made.",
        "a_prompt_is_a_function_of_its_conversation",
    ),
    Broken(
        DrawsItsDigests,
        "A digest is a function of what is shown.",
        "a_prompt_is_a_function_of_its_conversation",
    ),
)
