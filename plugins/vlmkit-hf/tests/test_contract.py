"""The tokenizer contract, for a tokenizer of each kind.

Families whose structure another family has, too, are marked slow: tiles as those of Idefics 3,
byte-level BPE without images as Qwen 3, and templates without roles of answers as Mistral 3.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from vlmkit_testing import TokenizerContract

SMALLER: dict[str, Mapping[str, Any]] = {
    "qwen2_vl": {"min_pixels": 28 * 28, "max_pixels": 28 * 28},
    "idefics3": {"size": {"longest_edge": 28}},
    "mistral3": {"size": {"longest_edge": 30}},
    "internvl": {"max_dynamic_patch": 1},
}
"""Limits that make images smaller, by the names of each family's processor."""

ONE_CALL = (
    "{% for message in messages %}{% if message.tool_calls and message.tool_calls | length > 1 %}"
    "{{ raise_exception('This model takes one call at once!') }}{% endif %}{% endfor %}"
)


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


def copied(folder: Path, parent: Path) -> Path:
    """Return a copy of a checkpoint's files."""
    return shutil.copytree(folder, parent / folder.name)


def change(file: Path, changed: Callable[[dict[str, Any]], object]) -> None:
    """Change the JSON object in a file, if there is one."""
    if file.exists():
        content = json.loads(file.read_text())
        changed(content)
        file.write_text(json.dumps(content))


def without_end(config: dict[str, Any]) -> None:
    """Remove the end token from a config."""
    for part in (config, config.get("text_config", {})):
        part.pop("eos_token_id", None)


class TestQwen2Vl(Contract):
    name = "qwen2_vl"


class TestQwen3Vl(Contract):
    """Its results of tools have images, and its template writes no ids of calls."""

    name = "qwen3_vl"
    names_calls = True


class TestOneCall(TestQwen3Vl):
    """The template takes one call in a message."""

    @pytest.fixture(autouse=True)
    def with_one_call(self, load: None, tmp_path: Path) -> None:
        self.folder = copied(self.folder, tmp_path)
        template = self.folder / "chat_template.jinja"
        template.write_text(ONE_CALL + template.read_text())
        self.tokenizer = HfTokenizer(Checkpoint("qwen3_vl", self.folder), HfTokenizerSettings())


class TestIdefics3(Contract):
    name = "idefics3"


class TestMistral3(Contract):
    """Only its tokenizer names the end token; some checkpoints state it nowhere else."""

    marks_answers = False
    name = "mistral3"

    @pytest.fixture(autouse=True)
    def without_stated_end(self, load: None, tmp_path: Path) -> None:
        self.folder = copied(self.folder, tmp_path)
        for name in ("config.json", "generation_config.json"):
            change(self.folder / name, without_end)
        self.tokenizer = HfTokenizer(Checkpoint("mistral3", self.folder), HfTokenizerSettings())


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


class TestSpelledReasoning(TestQwen3):
    """The marks of reasoning are no tokens of their own; the template alone knows them."""

    @pytest.fixture(autouse=True)
    def without_marks(self, load: None, tmp_path: Path) -> None:
        self.folder = copied(self.folder, tmp_path)

        def changed(content: dict[str, Any]) -> None:
            tokens = content["added_tokens"]
            content["added_tokens"] = [t for t in tokens if "think" not in t["content"]]

        def configured(content: dict[str, Any]) -> None:
            tokens = content.get("added_tokens_decoder", {})
            content["added_tokens_decoder"] = {
                number: token for number, token in tokens.items() if "think" not in token["content"]
            }

        change(self.folder / "tokenizer.json", changed)
        change(self.folder / "tokenizer_config.json", configured)
        self.tokenizer = HfTokenizer(Checkpoint("qwen3", self.folder), HfTokenizerSettings())

    def reasoning_marks(self) -> tuple[list[int], list[int]]:
        return self.tokenizer.encode("<think>"), self.tokenizer.encode("</think>")


@pytest.mark.slow
class TestMllama(Contract):
    name = "mllama"


@pytest.mark.slow
class TestPhi3(Contract):
    name = "phi3"
    takes_images = False
    is_lossless = False


del Contract, TokenizerContract  # pytest would collect these classes
