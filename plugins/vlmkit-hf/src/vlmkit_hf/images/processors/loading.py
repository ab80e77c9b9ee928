"""Builds a vision family's own processor from a checkpoint's folder, without torch or torchvision.

transformers' own loading also builds a video processor, which needs torchvision. Images do not need
it: the image processor here is the Pillow-based one, and parts for video or sound are left out.
The family's own code handles images and placeholders. Nothing is downloaded, and no code of a
checkpoint is run.
"""

import importlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit_hf.images.processors.files import (
    image_settings,
    processor_settings,
    refuse_without_images,
)
from vlmkit_hf.images.processors.leading import FAMILIES as LEADING, with_leading_image
from vlmkit_hf.images.processors.parts import PARTS

log = logging.getLogger(__name__)

# Keys that are not settings: parts of a processor, or its class.
_NOT_SETTINGS = frozenset({"processor_class", "auto_map", "chat_template", "audio_tokenizer"})
# Models that do not answer questions; torchvision would not help them.
_OTHER_MODELS = frozenset({"pi0", "pp_formulanet"})
_AUDIO_PARTS = frozenset({"feature_extractor", "audio_processor"})
_patch_lock = threading.Lock()


class Absent:
    """A placeholder for a processor's part for video or sound; it does nothing."""

    model_input_names: ClassVar[list[str]] = []  # families append to it

    def __getattr__(self, name: str) -> None:
        """Return None for every setting; private names are missing, as copying expects."""
        if name.startswith("_"):
            raise AttributeError(name)

    def to_dict(self) -> dict[str, Any]:
        """Return no settings."""
        return {}


class NoParts:
    """Adds nothing: the family's processor already works in parts."""


def takes_images(checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint takes images; a vision side need not have a tower."""
    has_tower = any("vision" in key or key == "vit_config" for key in checkpoint.answering)
    is_shown_pictures = bool(_image_processor_forms(checkpoint) and image_settings(checkpoint))
    return (has_tower or is_shown_pictures) and processor_class_name(checkpoint) is not None


def processor_class_name(checkpoint: Checkpoint) -> str | None:
    """Return the name of the family's processor class; None if transformers has none."""
    names = _known_processors()
    known = names.get(checkpoint.model_type)
    for file in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        name = checkpoint.read_json(file).get("processor_class")
        if isinstance(name, str) and name in names.values():
            return name
    return known


def load_processor(checkpoint: Checkpoint, tokenizer: Any) -> Any:
    """Return the family's processor with a tokenizer.

    Raises:
        CheckpointError: transformers has no such processor, or building it fails.
    """
    name = processor_class_name(checkpoint)
    refuse_without_images(checkpoint)
    try:
        own = _processor_class(str(name))
        kind = _with_parts(with_leading_image(own) if name in LEADING else own)
        parts = {part: _part(part, checkpoint, tokenizer) for part in kind.get_attributes()}
        if not _AUDIO_PARTS.isdisjoint(parts):
            log.info("model %r also takes sound, which is not served", checkpoint.name)
        accepted = kind.__init__.__code__.co_varnames
        settings = processor_settings(checkpoint, accepted)
        values = {
            key: value
            for key, value in settings.items()
            if key in accepted and key not in parts and key not in _NOT_SETTINGS
        }
        with _without_num2words(sys.modules[own.__module__]):
            return kind(**parts, **values)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # a processor may raise anything
        raise CheckpointError(
            f"the image processor of {checkpoint.name!r} ({name}) cannot be built here",
            hint=_hint(checkpoint),
        ) from error


def _part(part: str, checkpoint: Checkpoint, tokenizer: Any) -> Any:
    if part == "tokenizer":
        return tokenizer
    return _image_processor(checkpoint) if part == "image_processor" else Absent()


def _image_processor(checkpoint: Checkpoint) -> Any:
    """Return transformers' Pillow-based image processor, or ours if it has none.

    The choice does not depend on torchvision, so that a model sees the same everywhere.
    """
    from transformers import AutoImageProcessor

    from vlmkit_hf.images.pillow.processor import processor_class

    for name in _image_processor_names(checkpoint):
        kind = processor_class(name)
        if kind is not None:
            return kind.from_pretrained(checkpoint.path, local_files_only=True)
    return AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
        checkpoint.path, backend="pil", local_files_only=True, trust_remote_code=False
    )


def _image_processor_names(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the image processor that a checkpoint names, then one for torchvision alone."""
    own = checkpoint.read_json("processor_config.json").get("image_processor")
    for settings in (checkpoint.read_json("preprocessor_config.json"), own):
        name = settings.get("image_processor_type") if isinstance(settings, dict) else None
        if isinstance(name, str):
            yield name
    if name := _name_for_torchvision(checkpoint):
        yield name


def _name_for_torchvision(checkpoint: Checkpoint) -> str | None:
    """Return a family's image processor if transformers has it for torchvision alone."""
    forms = _image_processor_forms(checkpoint)
    return None if forms.get("pil") else forms.get("torchvision")


def _image_processor_forms(checkpoint: Checkpoint) -> Mapping[str, str]:
    """Return a family's image processors by backend; empty if the family takes no images."""
    from transformers.models.auto import image_processing_auto

    known = vars(image_processing_auto)["IMAGE_PROCESSOR_MAPPING_NAMES"]
    forms = known.get(checkpoint.model_type)
    return forms if isinstance(forms, dict) else {}


def _hint(checkpoint: Checkpoint) -> str:
    """Return a hint; it names torchvision only if that is what is missing."""
    from vlmkit_hf.images.pillow.families import FAMILIES

    name = _name_for_torchvision(checkpoint)
    is_known = name is None or name in FAMILIES or checkpoint.model_type in _OTHER_MODELS
    if is_known or _exists("torchvision"):
        return "see the log"
    return f"this family needs torchvision: {install_command('torchvision')}"


def _processor_class(name: str) -> Any:
    import transformers

    kind = getattr(transformers, name, None)
    if getattr(type(kind), "is_dummy", False):  # transformers declares that it needs torchvision
        kind = getattr(_import_without_torchvision(name), name)
    if kind is None:
        raise CheckpointError(f"this transformers has no {name}")
    return kind


def _import_without_torchvision(name: str) -> ModuleType:
    """Import a processor's module that imports the torchvision form of its image processor.

    PixtralProcessor's module takes one helper from there, which the Pillow form has as well. The
    Pillow form replaces the other during this one import.
    """
    families = {family for family, known in _known_processors().items() if known == name}
    families.add(name.removesuffix("Processor").lower())
    for family in sorted(families):
        package = f"transformers.models.{family}"
        wanted = f"{package}.image_processing_{family}"
        pillow = f"{package}.image_processing_pil_{family}"
        if _exists(f"{package}.processing_{family}") and _exists(pillow):
            with _patch_lock:
                sys.modules.setdefault(wanted, importlib.import_module(pillow))
                try:
                    return importlib.import_module(f"{package}.processing_{family}")
                finally:
                    if sys.modules[wanted].__name__ == pillow:
                        del sys.modules[wanted]
    raise CheckpointError(f"{name} needs torchvision")


@contextmanager
def _without_num2words(module: ModuleType) -> Iterator[None]:
    """Allow building a processor without num2words, which spells out numbers for videos.

    SmolVLM's processor requires it although images do not need it. It depends on a package that
    has no wheel.
    """
    with _patch_lock:
        is_absent = getattr(module, "num2words", Absent) is None
        if is_absent:
            vars(module)["num2words"] = Absent
        try:
            yield
        finally:
            if is_absent:
                vars(module)["num2words"] = None


def _known_processors() -> dict[str, str | None]:
    """Return the processor class of each family that has one."""
    from transformers.models.auto import processing_auto

    names: dict[str, str | None] = dict(vars(processing_auto)["PROCESSOR_MAPPING_NAMES"])
    return names


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _with_parts(kind: Any) -> Any:
    """Return a class that also works in parts, and that accepts :class:`Absent` parts."""

    class Processor(PARTS.get(kind.__name__, NoParts), kind):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if isinstance(argument, Absent):
                return Absent
            return super().check_argument_for_proper_class(argument_name, argument)

    Processor.__name__ = Processor.__qualname__ = kind.__name__
    return Processor
