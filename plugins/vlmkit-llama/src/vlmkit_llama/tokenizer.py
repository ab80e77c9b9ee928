"""The text side of a model with images: that of vlmkit-hf, with images as the library lays out.

The tokenizer of transformers renders a conversation and says where its images are. Tiles, markers
and the number of tokens of an image are the library's, which encodes it. Encodes no image.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence as Seq
from dataclasses import replace
from typing import Any

import numpy as np

from vlmkit.errors import ImageError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import PLAIN, Option, Tokenizer
from vlmkit.types.message import ImagePart, Message, image_parts_of
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.stage import Stage
from vlmkit_llama.layout import PIXELS, ROW, ImageLayout
from vlmkit_llama.projector import Projector

UNSUPPORTED: frozenset[Option] = frozenset({"image_detail", "mm_processor_kwargs", "return_places"})
"""Options of images that need an image processor whose sizes requests can change."""


class LlamaTokenizer:
    """Builds the prompts of one model.

    Args:
        text_side: renders conversations, and encodes and decodes text.
        projector: lays out images.
        processor: of what prepares images, as part of digests.
    """

    def __init__(self, text_side: Tokenizer, projector: Projector, processor: str) -> None:
        self._text_side, self._projector = text_side, projector
        self._processor = processor.encode()

    @property
    def vocab_size(self) -> int:
        """The number of token ids that can be decoded."""
        return self._text_side.vocab_size

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self._text_side.eos_ids

    @property
    def banned_ids(self) -> frozenset[int]:
        """The placeholders of images, which have no meaning in an answer."""
        return self._text_side.banned_ids

    @property
    def honours(self) -> frozenset[Option]:
        """The options of the text side, except those of other sizes of images."""
        return self._text_side.honours - UNSUPPORTED

    def prompt(
        self,
        messages: Seq[Message],
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Render the chat template, and lay out images.

        Raises:
            RequestError: the template refuses these roles, or the message has other media.
            ImageError: the library rejects an image, or it takes more tokens than allowed.
        """
        images = list(image_parts_of(messages))
        if not images:
            return self._text_side.prompt(messages, tools=tools, options=options)
        placed = self._text_side.prompt(messages, tools=tools, options=replace(options, light=True))
        laid_out = []
        for index, part in enumerate(images):
            try:
                laid_out.append(self._layout(part))
            except ImageError as error:
                error.index = index
                raise
        return self._filled(placed, images, laid_out, is_light=options.light)

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the token ids of plain text; no string in it becomes a special token."""
        return self._text_side.encode(text, adds_special=adds_special)

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return self._text_side.decode(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may be part of a character."""
        return self._text_side.token_bytes(token_id)

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        """Return a fresh parser of an answer to this prompt."""
        return self._text_side.reader(prompt, shows_special=shows_special)

    def _layout(self, part: ImagePart) -> ImageLayout:
        """Return the layout of an image.

        Raises:
            ImageError: the library rejects the image, or it takes more tokens than allowed.
        """
        width, height = part.image.width, part.image.height
        layout, most = self._projector.layout(width, height), part.options.max_tokens
        if most is not None and layout.num_features > most:
            raise ImageError(
                f"max_image_tokens is {most}, and this model needs {layout.num_features} for an "
                f"image of {width}x{height}",
                code="image_over_budget",
            )
        return layout

    def _filled(
        self,
        placed: Prompt,
        images: Seq[ImagePart],
        layouts: Seq[ImageLayout],
        *,
        is_light: bool,
    ) -> Prompt:
        """Replace the tokens of each image by those of its layout."""
        token_ids, slots, end = list[int](), list[MediaSlot](), 0
        nexts = [*(slot.start for slot in placed.media[1:]), len(placed.token_ids)]
        for slot, part, layout, next_ in zip(placed.media, images, layouts, nexts, strict=True):
            before = placed.token_ids[end : slot.start]  # without the tokens of other images
            token_ids += before
            end = slot.stop
            layout = layout.between(before, placed.token_ids[end:next_])  # noqa: PLW2901
            feature_id = self._feature_id(placed.token_ids[slot.start : end])
            start = len(token_ids)
            token_ids += [feature_id if i == ROW else i for i in layout.token_ids.tolist()]
            made = MediaSlot(start, len(token_ids), b"", {}, layout.num_features)
            slots.append(made if is_light else self._with_inputs(made, part, layout))
        token_ids += placed.token_ids[end:]
        return replace(placed, token_ids=tuple(token_ids), media=tuple(slots))

    def _feature_id(self, token_ids: Seq[int]) -> int:
        """Return the token that stands for a row of features among those of an image."""
        placeholders = [i for i in token_ids if i in self.banned_ids] or token_ids
        (found, _), *_ = Counter(placeholders).most_common(1)
        return found

    def _with_inputs(self, slot: MediaSlot, part: ImagePart, layout: ImageLayout) -> MediaSlot:
        if (known := part.image.prepared) is not None:
            inputs = layout.inputs(known.inputs[PIXELS])
            return replace(slot, digest=known.digest, inputs=inputs, around=known.around)
        began_s = time.time()
        pixels = np.array(part.image.to_pil())
        digest = hashlib.sha256(self._processor + part.image.digest).digest()
        inputs, stage = layout.inputs(pixels), Stage.since(began_s)
        # The layout of an image depends on the text beside it, and is made anew.
        return replace(slot, digest=digest, inputs=inputs, preprocess=stage, around=("", ""))
