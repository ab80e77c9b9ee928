"""What contracts of tokenizers start from: the tokenizer, and what its model takes."""

from vlmkit.ask.message import Message
from vlmkit.seams.prompt import Prompt
from vlmkit.seams.tokenizer import Tokenizer
from vlmkit.testing.pictures import picture


class TokenizerSubject:
    """Who writes a test fills this in.

    Attributes:
        takes_images: whether the model takes images.
        keeps_places: whether an image stands where its message puts it; templates that put images
            before all text do not keep them there.
    """

    takes_images = True
    keeps_places = True

    def make(self) -> Tokenizer:
        """Return the tokenizer; may be the same each time."""
        raise NotImplementedError

    def _prompt(self, messages: list[Message]) -> Prompt:
        return self.make().prompt(messages)

    def _conversation(self) -> list[Message]:
        images = [picture()] if self.takes_images else []
        return [Message.of("user", "hello", images)]
