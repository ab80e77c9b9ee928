"""Tokenizers that break a promise about texts and single tokens."""

import time
import unicodedata
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from broken.broken import Broken
from broken.changed_tokenizer import Changed, ChangedSlots
from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.message import Message
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vocabulary import BEGIN, END, NUM_BYTES, SPELLINGS


class LowersLetters(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text.lower(), adds_special=adds_special)


class DropsTheLastSpace(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return super().decode(token_ids).rstrip(" ")


class StripsWhatItEncodes(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text.rstrip(" "), adds_special=adds_special)


class ComposesLetters(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(unicodedata.normalize("NFC", text), adds_special=adds_special)


class ParsesWholeTexts(MockTokenizer):
    """Lets a library add the special tokens around a text, which also parses those within."""

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        token_ids = super().encode(text, adds_special=adds_special)
        for token_id, spelling in SPELLINGS.items() if adds_special else ():
            typed = super().encode(spelling)
            starts = (i for i in range(len(token_ids)) if token_ids[i : i + len(typed)] == typed)
            if (start := next(starts, None)) is not None:
                token_ids[start : start + len(typed)] = [token_id]
        return token_ids


class UndoesLigatures(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text.replace("ﬁ", "fi"), adds_special=adds_special)


class DropsByteOrderMarks(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return super().decode(token_ids).encode().decode("utf-8-sig")


class ChangesLineEndings(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode("\n".join(text.splitlines()), adds_special=adds_special)


class EndsAtNul(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text.partition("\0")[0], adds_special=adds_special)


class DropsSpacesBeforePunctuation(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return super().decode(token_ids).replace(" ,", ",").replace(" ?", "?")


class SpacesHaveNoBytes(MockTokenizer):
    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id).strip()


class SpellsSpacesAsMarks(MockTokenizer):
    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id).replace(b" ", "▁".encode())


class TruncatesLongTexts(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text[:8192], adds_special=adds_special)


class TruncatesLongPrompts(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return Prompt(prompt.token_ids[-4096:], prompt.media)


class AlwaysAddsSpecialTokens(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(text, adds_special=True)


class CrashesOnSurrogates(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        text.encode()
        return super().encode(text, adds_special=adds_special)


class CountsOnlyAsciiTokens(MockTokenizer):
    @property
    def vocab_size(self) -> int:
        return 128


class BansALetter(MockTokenizer):
    @property
    def banned_ids(self) -> frozenset[int]:
        return super().banned_ids | {ord("e")}


class ReturnsNumpyIntegers(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> Any:
        return list(np.array(super().encode(text, adds_special=adds_special), np.int64))


class CountsTokensThatDoNotExist(MockTokenizer):
    @property
    def vocab_size(self) -> int:
        return 512

    def token_bytes(self, token_id: int) -> bytes:
        if token_id >= NUM_BYTES:
            assert SPELLINGS[token_id]
        return super().token_bytes(token_id)


class HasNoEndToken(MockTokenizer):
    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset()


class BansTheEndToken(MockTokenizer):
    @property
    def banned_ids(self) -> frozenset[int]:
        return super().banned_ids | {END}


class BansIdsOutsideTheVocabulary(MockTokenizer):
    @property
    def banned_ids(self) -> frozenset[int]:
        return super().banned_ids | {self.vocab_size}


class DecodesTheEndToken(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return super().decode(token_ids) + "<|end|>" * list(token_ids).count(END)


class DecodesTheStartToken(MockTokenizer):
    def decode(self, token_ids: Seq[int]) -> str:
        return "<|begin|>" * list(token_ids).count(BEGIN) + super().decode(token_ids)


class KeepsTheConversation(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        self.messages = messages
        time.sleep(0.002)
        return super().prompt(self.messages, tools=tools, options=options)


class SharesResultsBetweenThreads(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        self.last = super().prompt(messages, tools=tools, options=options)
        time.sleep(0.002)
        return self.last


class HasRandomDigests(ChangedSlots):
    def slot(self, slot: MediaSlot) -> MediaSlot:
        digest = np.random.default_rng().bytes(32)
        return MediaSlot(slot.start, slot.stop, digest, slot.inputs, slot.num_features)


class CachesTextsWithoutTheFlag(MockTokenizer):
    """Keeps the tokens of texts, whether or not special tokens were requested."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, list[int]] = {}

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        if text not in self.known:
            self.known[text] = super().encode(text, adds_special=adds_special)
        return list(self.known[text])


class SetsAndResetsTheFlag(MockTokenizer):
    """Sets the flag of a library before a text, and resets it only if nothing is raised."""

    is_adding = False

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        self.is_adding = self.is_adding or adds_special
        if "\ud83d" in text:
            raise RequestError("a text has half a surrogate pair", param="text")
        made = super().encode(text, adds_special=self.is_adding)
        self.is_adding = False
        return made


class AddsSpecialFromTheFirstTimeOn(MockTokenizer):
    is_adding = False

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        self.is_adding = self.is_adding or adds_special
        return super().encode(text, adds_special=self.is_adding)


BROKEN = (
    Broken(
        LowersLetters,
        "Decoding restores the text.",
        "decoding_restores_the_text",
    ),
    Broken(
        DropsTheLastSpace,
        "decode() keeps the last space of a text.",
        "a_space_at_the_end_of_a_text_stays",
    ),
    Broken(
        StripsWhatItEncodes,
        "encode() keeps the spaces around a text.",
        "a_space_at_the_end_of_a_text_stays",
    ),
    Broken(
        ParsesWholeTexts,
        "No text becomes a special token, also between those around a whole text.",
        "no_text_becomes_a_special_token",
    ),
    Broken(
        SpacesHaveNoBytes,
        "A space token has the byte of a space.",
        "the_bytes_of_the_tokens_are_the_bytes_of_the_text",
    ),
    Broken(
        ComposesLetters,
        "A letter and its accent stay two characters.",
        "decoding_restores_the_text",
    ),
    Broken(UndoesLigatures, "A ligature stays one character.", "decoding_restores_the_text"),
    Broken(
        DropsByteOrderMarks,
        "A byte order mark at the start of a text is text.",
        "decoding_restores_the_text",
    ),
    Broken(ChangesLineEndings, "Line endings stay as they are.", "decoding_restores_the_text"),
    Broken(
        EndsAtNul, "A text may contain any character, NUL included.", "decoding_restores_the_text"
    ),
    Broken(
        DropsSpacesBeforePunctuation,
        "Spaces before punctuation are text.",
        "decoding_restores_the_text",
    ),
    Broken(
        SpellsSpacesAsMarks,
        "token_bytes() returns bytes of the text, not the spelling of the vocabulary.",
        "the_bytes_of_the_tokens_are_the_bytes_of_the_text",
    ),
    Broken(TruncatesLongTexts, "encode() does not truncate.", "a_long_text_is_never_cut"),
    Broken(TruncatesLongPrompts, "prompt() does not truncate.", "a_long_text_is_never_cut"),
    Broken(
        AlwaysAddsSpecialTokens,
        "No tokens are added around a text, unless adds_special requests them.",
        "no_tokens_are_added_around_a_text_by_default",
    ),
    Broken(
        CrashesOnSurrogates,
        "Any text is encoded or refused with a RequestError.",
        "half_a_surrogate_pair_is_refused_or_replaced",
        raises=(UnicodeEncodeError,),
    ),
    Broken(
        CountsOnlyAsciiTokens,
        "vocab_size covers every token that a text may have.",
        "every_token_of_a_text_is_in_the_vocabulary",
    ),
    Broken(
        BansALetter,
        "No token of a text is banned.",
        "every_token_of_a_text_is_in_the_vocabulary",
    ),
    Broken(
        ReturnsNumpyIntegers,
        "Token ids are plain integers.",
        "every_token_of_a_text_is_in_the_vocabulary",
    ),
    Broken(
        CountsTokensThatDoNotExist,
        "Every id below vocab_size can be decoded.",
        "every_token_of_the_vocabulary_can_be_decoded",
        raises=(KeyError,),
    ),
    Broken(
        HasNoEndToken, "At least one token ends an answer.", "special_ids_are_in_the_vocabulary"
    ),
    Broken(BansTheEndToken, "End tokens may be sampled.", "special_ids_are_in_the_vocabulary"),
    Broken(
        BansIdsOutsideTheVocabulary,
        "Banned ids are in the vocabulary.",
        "special_ids_are_in_the_vocabulary",
    ),
    Broken(
        DecodesTheEndToken,
        "decode() returns text without special tokens.",
        "decoded_text_is_without_special_tokens",
    ),
    Broken(
        DecodesTheStartToken,
        "The token that begins a conversation has no text.",
        "decoded_text_is_without_special_tokens",
    ),
    Broken(
        KeepsTheConversation,
        "Several threads may call the methods at once.",
        "a_prompt_is_a_function_of_its_conversation",
    ),
    Broken(
        SharesResultsBetweenThreads,
        "Threads do not share results.",
        "a_prompt_is_a_function_of_its_conversation",
    ),
    Broken(
        HasRandomDigests,
        "A digest is a function of the content.",
        "a_prompt_is_a_function_of_its_conversation",
    ),
    *(
        Broken(component, promise, "the_tokens_of_a_text_do_not_depend_on_earlier_calls")
        for component, promise in (
            (CachesTextsWithoutTheFlag, "adds_special is part of the request."),
            (SetsAndResetsTheFlag, "adds_special of a refused text has no effect later."),
            (AddsSpecialFromTheFirstTimeOn, "adds_special of an earlier call has no effect."),
        )
    ),
)
