"""Which families the installed transformers has, and how each is written.

Reads its files and imports none of them: that would take seconds.
"""

import importlib.util
import re
from pathlib import Path

NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)  # of a family; a checkpoint may say anything


def is_known(model_type: str) -> bool:
    """Whether the installed transformers lists the family."""
    families = _families()
    return families is None or f'("{model_type}", ' in families  # why_not() has the better reason


def is_shown_pictures(model_type: str) -> bool:
    """Whether it lists the family among those that answer about pictures.

    Some have no tower: their decoder takes tokens of a codebook (Emu3). One is listed with a class
    that goes on with texts (Mistral 4, which sees as a part of Mistral 3 only).
    """
    _, _, rest = (_families() or "").partition("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES = ")
    line = re.search(rf'\("{re.escape(model_type)}", "(\w+)"', rest.partition("\n)")[0])
    return line is not None and not line[1].endswith("ForCausalLM")


def _families() -> str | None:
    """Return the lists of families of the installed transformers, as they are written."""
    place = _models()
    return None if place is None else (place / "auto" / "modeling_auto.py").read_text("utf-8")


def code_of(model_type: str) -> str:
    """Return how a family is written; nothing where its file has another name."""
    name, place = model_type.replace("-", "_"), _models()
    if place is None or NAME.fullmatch(name) is None:
        return ""
    return "".join(file.read_text("utf-8") for file in place.glob(f"*/modeling_{name}.py"))


def _models() -> Path | None:
    """Return where the installed transformers keeps its families."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "models"
