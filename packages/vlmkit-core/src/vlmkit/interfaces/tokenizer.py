"""What a tokenizer must do: conversations to tokens, tokens to text. No implementation.

Its methods are called from several worker threads at once.
"""

from collections.abc import Mapping, Sequence as Seq
from typing import Any, Literal, Protocol

from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.types.message import Message
from vlmkit.types.prompt_options import PromptOptions

Option = Literal[
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "image_detail",
    "light",
    "max_image_tokens",
    "mm_processor_kwargs",
    "reasoning_effort",
    "return_places",
    "skip_special_tokens",
]
"""What a request may ask of a tokenizer and a simple one need not know.

Three are about ``ImagePart.options``: ``image_detail`` means that ``wanted_tokens`` makes pictures
smaller, ``max_image_tokens`` that ``max_tokens`` is kept to or refused, and ``mm_processor_kwargs``
that ``processor`` is looked at. One, ``return_places``, means that prompts with images have a
``place_format``.
"""


PLAIN = PromptOptions()
"""A template's own way."""


class Tokenizer(Protocol):
    """One model's text side: conversations to tokens, tokens to text.

    Text that a user typed can never become a control token or a slot: it is encoded with
    special-token parsing off, and media are placed by structure, not by searching for a string.
    """

    @property
    def vocab_size(self) -> int:
        """How many token ids can be decoded."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def banned_ids(self) -> frozenset[int]:
        """Tokens that must never be sampled, such as image placeholders."""
        ...

    @property
    def honours(self) -> frozenset[Option]:
        """Which options it honours; a request with another one is refused before it comes here."""
        ...

    def prompt(
        self,
        messages: Seq[Message],
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Render the chat template, expand media to placeholders, preprocess what they hold.

        Of images that are shown in several sizes, each size has a digest of its own.

        Args:
            messages: the conversation.
            tools: what the model may call.
            options: how it is to be written; none but those that are honoured.

        Raises:
            RequestError: the template refuses these roles, or the model takes no such media; see
                :func:`vlmkit.types.message.refuse_other_media`.
            ImageError: the processor refuses an image, or cannot make it as small as is asked for.
        """
        ...

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the token ids of plain text; no string in it becomes a special token.

        Args:
            text: any text.
            adds_special: whether the tokens are there that this tokenizer puts around a text which
                is read as a whole, such as one for its beginning.
        """
        ...

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token stands for; may be part of a character."""
        ...

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        """Return a fresh reader of an answer to this prompt; takes no time.

        Args:
            prompt: what it answers.
            shows_special: whether special tokens, but for marks of reasoning, are part of the text.
        """
        ...
