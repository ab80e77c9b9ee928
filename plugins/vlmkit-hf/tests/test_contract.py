"""The tokenizer contract, for a tokenizer of each kind.

Families whose structure another family has, too, are marked slow: tiles as those of Idefics 3,
byte-level BPE without images as Qwen 3, and templates without roles of answers as Mistral 3.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from vlmkit_testing import TokenizerContract

SMALLER: dict[str, Mapping[str, Any]] = {
    "qwen2_vl": {"min_pixels": 28 * 28, "max_pixels": 28 * 28},
    "idefics3": {"size": {"longest_edge": 28}},
    "mistral3": {"size": {"longest_edge": 30}},
    "internvl": {"max_dynamic_patch": 1},
}
"""Limits that make images smaller, by the names of each family's processor."""


class Contract(TokenizerContract):
    """The contract of a family; subclasses set the family's name."""

    name = ""

    @pytest.fixture(autouse=True)
    def load(
        self,
        tokenizer_of: Callable[[str], HfTokenizer],
        checkpoint_of: Callable[[str], Checkpoint],
    ) -> None:
        self.tokenizer = tokenizer_of(self.name)
        self.folder = checkpoint_of(self.name).path

    def make(self) -> HfTokenizer:
        return self.tokenizer

    def smaller(self) -> Mapping[str, Any]:
        return SMALLER.get(self.name, {})

    def special_texts(self) -> list[str]:
        return [token["content"] for token in self._added() if token["special"]]

    def id_of(self, text: str) -> int:
        return next(token["id"] for token in self._added() if token["content"] == text)

    def _added(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.folder / "tokenizer.json").read_text())[
            "added_tokens"
        ]
        return found


class TestQwen2Vl(Contract):
    name = "qwen2_vl"


class TestIdefics3(Contract):
    name = "idefics3"


class TestMistral3(Contract):
    marks_answers = False
    name = "mistral3"


@pytest.mark.slow
class TestInternVl(Contract):
    name = "internvl"


class TestGemma3(Contract):
    name = "gemma3"
    keeps_spaces = False
    is_lossless = False  # letters outside the vocabulary are bytes; a lone "▁" is a space


@pytest.mark.slow
class TestLlama(Contract):
    name = "llama"
    keeps_spaces = False
    takes_images = False


class TestGptOss(Contract):
    name = "gpt_oss"
    names_calls = True
    shows_nested_schemas = False  # items of arrays are objects of any kind
    ends_turns = False  # the last message ends with <|return|>, earlier ones with <|end|>
    takes_images = False

    def reasoning_marks(self) -> tuple[list[int], list[int]]:
        head = [self.id_of("<|channel|>"), *self.make().encode("analysis")]
        return [*head, self.id_of("<|message|>")], [self.id_of("<|end|>")]


@pytest.mark.slow
class TestMistral(Contract):
    marks_answers = False
    name = "mistral"
    keeps_spaces = False
    takes_images = False
    is_lossless = False


class TestQwen3(Contract):
    name = "qwen3"
    names_calls = True
    takes_images = False

    def reasoning_marks(self) -> tuple[list[int], list[int]]:
        return [self.id_of("<think>")], [self.id_of("</think>")]


@pytest.mark.slow
class TestPhi3(Contract):
    name = "phi3"
    takes_images = False
    is_lossless = False


del Contract, TokenizerContract  # pytest would collect these classes
