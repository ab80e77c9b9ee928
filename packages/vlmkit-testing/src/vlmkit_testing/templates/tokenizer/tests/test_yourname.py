"""The tokenizer keeps vlmkit's contract, and every character counts once if it is known."""

import json
from pathlib import Path

import pytest

from vlmkit.errors import CheckpointError
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_testing import TokenizerContract
from vlmkit_yourname.tokenizer import CharacterTokenizer, characters_of

MODEL = Checkpoint("model", Path(__file__).with_name("model"))


class TestCharacterTokenizer(TokenizerContract):
    takes_images = False

    def make(self) -> Tokenizer:
        return CharacterTokenizer(characters_of(MODEL))

    def special_texts(self) -> list[str]:
        return ["<user>", "<assistant>", "<end>"]


def test_known_characters_are_one_token_and_others_their_bytes() -> None:
    tokenizer = CharacterTokenizer(characters_of(MODEL))
    assert len(tokenizer.encode("日本")) == 2
    assert len(tokenizer.encode("語")) == 3


@pytest.mark.parametrize("content", [["ab"], [1], ["a", "a"]])
def test_a_broken_list_is_refused(tmp_path: Path, content: list[object]) -> None:
    (tmp_path / "characters.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"characters\.json"):
        characters_of(Checkpoint("broken", tmp_path))
