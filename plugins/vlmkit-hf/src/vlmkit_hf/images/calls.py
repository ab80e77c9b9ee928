"""Calls a family's processor for one image or one text at a time.

Does not check or digest images; see :mod:`vlmkit_hf.images.side`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image

from vlmkit.interfaces.prompt import Array
from vlmkit_hf.images.facts import ImageFacts, apply_layout
from vlmkit_hf.images.processors.parts import spaced
from vlmkit_hf.images.sizing.base import Limits
from vlmkit_hf.templates.stand_ins import Segment


class ProcessorCalls:
    """The calls of one processor; thread-safe.

    Args:
        processor: the family's processor.
        facts: its properties.

    Attributes:
        options: the arguments of its image processor.
    """

    def __init__(self, processor: Any, facts: ImageFacts) -> None:
        self._processor = processor
        self._facts = facts
        self.options: dict[str, Any] = dict(facts.options)

    def layout(self, num_images: int) -> Callable[[str], str] | None:
        """Return the processor's change of a whole text; None if it changes nothing."""
        if not num_images or not self._facts.lays_out:
            return None
        return lambda text: apply_layout(self._processor, text, num_images) or text

    def with_spaces_after_images(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return segments with the spaces that the processor puts after images."""
        if not self._facts.spaced_after:
            return list(segments)
        following = [segment.text for segment in segments[1:]] + [""]
        return [
            run
            if run.is_client
            else Segment(spaced(run.text, self._facts.spaced_after, next_), False)
            for run, next_ in zip(segments, following, strict=True)
        ]

    def process(self, picture: PIL.Image.Image, limits: Limits) -> tuple[Mapping[str, Any], str]:
        """Return the arrays and the text of one image."""
        layout = self._processor.prepare_inputs_layout(
            images=[picture], text=[self._facts.placeholder]
        )
        arrays, replacements = self._processor._process_images(  # noqa: SLF001 - no public way
            layout[0], **{**self.options, **self._facts.own_options, **limits}
        )
        (written,) = replacements
        return arrays, written

    def inputs(self, arrays: Mapping[str, Any]) -> dict[str, Array]:
        """Return the arrays that the model takes."""
        wanted = self._facts.input_names
        return {name: _array(arrays[name]) for name in arrays if name in wanted}

    def token_types(self, token_ids: Sequence[int]) -> dict[str, Array]:
        """Return the token types of an image, if they mark more than its feature tokens."""
        if not self._facts.types_tokens:
            return {}
        types = np.isin(token_ids, self._facts.image_ids).astype(np.int64)
        is_plain = np.array_equal(types, np.equal(token_ids, self._facts.feature_id))
        return {} if is_plain else {"mm_token_type_ids": types}


def _array(value: Any) -> Array:
    array = np.ascontiguousarray(np.asarray(value))
    made: Array = array.astype(np.int64) if array.dtype.kind in "iu" else array
    return made
