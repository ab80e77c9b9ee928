"""The interface of tokenizers: conversations to tokens, tokens to text; no implementation.

Methods are called from several worker threads at once.
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
"""Options of requests that a tokenizer may support.

Three concern ``ImagePart.options``. With ``image_detail``, ``wanted_tokens`` makes images smaller.
With ``max_image_tokens``, ``max_tokens`` is enforced, or the image refused. With
``mm_processor_kwargs``, ``processor`` takes effect. ``return_places`` means that prompts with
images have a ``place_format``.
"""


PLAIN = PromptOptions()
"""The defaults of a chat template."""


class Tokenizer(Protocol):
    """Converts the conversations of one model to tokens, and tokens to text.

    Text of a user must never become a control token or a media slot. It is encoded with
    special-token parsing off. Media are placed by structure, not by searching for a string.
    """

    @property
    def vocab_size(self) -> int:
        """Number of token ids that can be decoded."""
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
        """The supported options; the pipeline refuses a request with any other."""
        ...

    def prompt(
        self,
        messages: Seq[Message],
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Render the chat template, expand media to placeholders and preprocess the media.

        An image that is shown in several sizes has a different digest for each size. What begins a
        text with ``adds_special`` begins a prompt once. A prompt shows which call each result
        belongs to, by its id or by the order of the calls, whatever the order of the results.

        Args:
            messages: the conversation.
            tools: definitions of the tools that the model may call.
            options: options of the chat template; only those in ``honours``.

        Raises:
            RequestError: the template refuses these roles, or the model does not take such media;
                see :func:`vlmkit.types.message.refuse_other_media`.
            ImageError: the processor refuses an image, or cannot make it as small as requested.
        """
        ...

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the token ids of plain text; no string in it becomes a special token.

        Args:
            text: any text.
            adds_special: whether to add the special tokens that this tokenizer puts around a whole
                text, such as a beginning-of-sequence token.
        """
        ...

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may be part of a character."""
        ...

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        """Return a fresh parser of an answer to this prompt; returns at once.

        Args:
            prompt: the prompt of the answer.
            shows_special: whether special tokens other than reasoning delimiters are part of the
                text.
        """
        ...
