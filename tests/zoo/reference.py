"""The family's own processor, and what it makes of a conversation: the reference side of parity.

transformers offers no processor that reads video without torchvision, and PixtralProcessor's module
imports torchvision for the sake of one helper. Images need neither, so here

* a processor that insists on a video processor gets one that can do nothing, through a subclass
  that accepts it: everything about images and text is the family's own code;
* SmolVLMProcessor, which wants num2words to spell how many frames a video has, is built without;
* PixtralProcessor's module is loaded with the Pillow twin of the module it wants; the two define
  the same helper.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import transformers
from PIL import Image
from transformers import BatchFeature, ProcessorMixin
from transformers.models.smolvlm import processing_smolvlm

from zoo.composite import LISTENERS, THINKERS
from zoo.cross_attention import CROSS_ATTENTION
from zoo.family import Family, VisionSide
from zoo.more import MORE
from zoo.others import OTHERS
from zoo.partly_supported import TIMM, UNKNOWN
from zoo.text import TEXT
from zoo.variants import VARIANTS
from zoo.vision import VISION

FAMILIES: Mapping[str, Family] = {
    **VISION,
    **VARIANTS,
    **MORE,
    **OTHERS,
    **THINKERS,
    **CROSS_ATTENTION,
    **TEXT,
}
WITH_TIMM: Mapping[str, Family] = {**TIMM, **LISTENERS}
WITHOUT_PLACES = frozenset({"Blip2Processor"})
"""They put a picture before a text, which has no placeholder."""
_PIXTRAL = "transformers.models.pixtral"


class NoVideo:
    """Stands where a processor wants a video processor; it can do nothing."""

    model_input_names: Sequence[str] = []
    num_frames = None
    fps = None
    slice_mode = None
    downsample_mode = None


def family(name: str) -> Family:
    """Return a family of the zoo by its name."""
    return {**FAMILIES, **WITH_TIMM, **UNKNOWN}[name]


def model_type(name: str) -> str:
    """Return the model type in a family's configuration."""
    chosen = family(name)
    return chosen.config(chosen.tokenizer()).model_type


def placeholder(name: str) -> str:
    """Return the text that represents one image for the family's processor."""
    return _vision(name).placeholder


@cache
def processor(name: str) -> ProcessorMixin:
    """Return a vision family's processor, with Pillow-based image processing; do not modify it."""
    side = _vision(name)
    kind = _processor_class(side.processor)
    parts: dict[str, Any] = {
        "image_processor": image_processor(side),
        "tokenizer": family(name).tokenizer(),
    }
    if absent := {"video_processor", "feature_extractor", "audio_processor"} & set(
        kind.get_attributes()
    ):
        kind = _without_video(kind)
        parts |= {part: NoVideo() for part in absent}
    with mock.patch.object(processing_smolvlm, "num2words", NoVideo):
        return kind(**parts, chat_template=family(name).template, **side.processor_settings)


def image_processor(side: VisionSide) -> Any:
    """Return the Pillow-based image processor of a family."""
    settings = dict(side.image_settings)
    extra = settings.pop("image_seq_length", None)
    made = _image_processor_class(side.image_processor)(**settings)
    if extra is not None:  # PaliGemma keeps it on the image processor, whose class does not know it
        made.image_seq_length = extra
    return made


def reference(
    name: str,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[Image.Image] = (),
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    return_tensors: str = "np",
    limits: Mapping[str, Any] | None = None,
) -> BatchFeature:
    """Return transformers' inputs for a conversation: ``input_ids`` and the image arrays.

    Args:
        name: a family of the zoo.
        messages: in transformers' own form; contents may be strings or lists of parts, where
            ``{"type": "image"}`` represents the next of ``images``.
        images: in the order of their parts.
        tools: passed to the chat template.
        return_tensors: ``"np"`` or ``"pt"``.
        limits: passed to the image processor.
    """
    if name in TEXT:
        tokenizer = family(name).tokenizer()
        tokenizer.chat_template = family(name).template
        made = tokenizer.apply_chat_template(
            list(messages),
            tools=tools,
            add_generation_prompt=True,
            return_tensors="np",
            return_dict=True,
        )
        return _as(return_tensors, made)
    made = processor(name)
    template = family(name).template
    text = (
        _rendered(made, messages, tools, template)
        if name != "got_ocr2"
        else _for_got(made, messages)
    )
    if _vision(name).processor in WITHOUT_PLACES:
        text = text.replace(placeholder(name), "")
    bos = made.tokenizer.bos_token
    more = {"add_special_tokens": False} if bos is not None and text.startswith(bos) else {}
    shown = {"images": list(images), **(limits or {})} if images else {}
    if name in ("internvl", "got_ocr2") and not images:  # their processors take no text alone
        return _as(return_tensors, made.tokenizer(text=[text], return_tensors="np", **more))
    return _as(return_tensors, made(text=[text], return_tensors="np", **shown, **more))


def _as(kind: str, made: Mapping[str, Any]) -> BatchFeature:
    """Return arrays as they are, or as torch tensors over the same memory."""
    if kind == "np":
        return BatchFeature(dict(made))
    import torch

    return BatchFeature({name: torch.from_numpy(np.asarray(made[name])) for name in made})


def _rendered(
    made: ProcessorMixin,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    template: str | None,
) -> str:
    if template is None:  # PaliGemma: images first, then the words
        parts = [part for message in messages for part in message["content"]]
        shown = sum(part["type"] == "image" for part in parts)
        return "<image>" * shown + "".join(part.get("text", "") for part in parts)
    return made.apply_chat_template(
        list(messages),
        chat_template=template,
        tools=tools,
        add_generation_prompt=True,
        tokenize=False,
    )


def _for_got(made: ProcessorMixin, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the processor's own prompt for a page, with other questions and pages."""
    page = Image.new("RGB", (28, 28))
    written = made.prepare_inputs_layout(images=[page], format=False, images_kwargs={})[1][0]
    (message,) = messages
    pages = "<imgpad>" * sum(part["type"] == "image" for part in message["content"])
    asked = "".join(part.get("text", "") for part in message["content"])
    written = written.replace("<img><imgpad></img>\n", f"<img>{pages}</img>\n" if pages else "")
    return written.replace(" OCR: ", asked)


def _vision(name: str) -> VisionSide:
    side = family(name).vision
    if side is None:
        raise ValueError(f"{name!r} is a text family")
    return side


def _image_processor_class(name: str) -> Any:
    if name.endswith("Pil"):
        return getattr(transformers, name)
    from vlmkit_hf.images.pillow.processor import processor_class

    return processor_class(name) or getattr(transformers, name)  # some need no torchvision


def _processor_class(name: str) -> type[ProcessorMixin]:
    if name != "PixtralProcessor":
        return getattr(transformers, name)
    wanted = f"{_PIXTRAL}.image_processing_pixtral"
    if wanted not in sys.modules and importlib.util.find_spec("torchvision") is None:
        sys.modules[wanted] = importlib.import_module(f"{_PIXTRAL}.image_processing_pil_pixtral")
        try:
            return importlib.import_module(f"{_PIXTRAL}.processing_pixtral").PixtralProcessor
        finally:
            del sys.modules[wanted]
    return importlib.import_module(f"{_PIXTRAL}.processing_pixtral").PixtralProcessor


def _without_video(kind: type[ProcessorMixin]) -> type[ProcessorMixin]:
    class Processor(kind):  # type: ignore[misc, valid-type]
        __doc__ = f"{kind.__name__} whose video side is absent."

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if isinstance(argument, NoVideo):
                return NoVideo
            return super().check_argument_for_proper_class(argument_name, argument)

    Processor.__name__ = kind.__name__
    return Processor
