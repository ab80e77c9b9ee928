"""Engine and tokenizer keep vlmkit's contracts, and the packaged model answers."""

import pytest

import vlmkit
from vlmkit.errors import CheckpointError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.message import Message
from vlmkit_testing import EngineContract, ModelContract, TokenizerContract
from vlmkit_yourname import plugin
from vlmkit_yourname.engine import BytePairEngine, lines_of
from vlmkit_yourname.settings import BytePairSettings
from vlmkit_yourname.tokenizer import ByteTokenizer


class TestModel(ModelContract):
    plugin = plugin
    name = "yourname"


class TestByteTokenizer(TokenizerContract):
    takes_images = False

    def make(self) -> Tokenizer:
        return ByteTokenizer()

    def special_texts(self) -> list[str]:
        return ["<end>", "<user>", "<answer>"]


class TestBytePairEngine(EngineContract):
    def make(self) -> Engine:
        return BytePairEngine(["to be or not"], BytePairSettings(capacity_tokens=512))

    def prompts(self) -> list[Prompt]:
        texts = ["to", "to be", "a prompt of more than two blocks"]
        return [ByteTokenizer().prompt([Message.of("user", text)]) for text in texts]


def test_the_packaged_model_answers_as_its_lines_say() -> None:
    with vlmkit.load("yourname") as model:
        assert model.generate("hello").text == "hi cat!"


def test_a_model_without_lines_is_refused() -> None:
    folder = vlmkit.fetch("yourname").path.parent
    with pytest.raises(CheckpointError, match="must have 'lines'"):
        lines_of(Checkpoint("empty", folder))
