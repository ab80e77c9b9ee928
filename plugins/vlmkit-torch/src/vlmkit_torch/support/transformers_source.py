"""Which families the installed transformers has, and how each is written.

Reads its files and imports none of them: that would take seconds.
"""

import importlib.util
import re
from pathlib import Path

from vlmkit.kit.objection import Objection

ANOTHER = "take a model of another family"

NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)  # of a family; a checkpoint may say anything
# Present where the first position follows the padding token's id.
POSITIONS = "def create_position_ids_from_input_ids("
# Present where attention can be replaced.
REPLACEABLE = "ALL_ATTENTION_FUNCTIONS"
ATTENTION = re.compile(r"^class \w*Attention\w*\(nn\.Module\):", re.MULTILINE)


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


def code_objection(model_type: str) -> Objection | None:
    """Say what in the code of a decoder's family cannot be run; None where nothing is known.

    The code of a family that takes images is skipped, because it may be the code of a tower.
    """
    code = "" if is_shown_pictures(model_type) else code_of(model_type)
    if ATTENTION.search(code) and REPLACEABLE not in code:
        return attention_objection(model_type)
    if POSITIONS in code:
        what = "positions that are counted from the id of the padding token"
        return Objection(f"{what} are not supported", hint=ANOTHER)
    return None


def attention_objection(model_type: str) -> Objection:
    """Say that the family's own attention cannot be replaced."""
    return Objection(
        f"model type {model_type!r} computes attention in code of its own, which paged attention "
        "cannot replace",
        hint=ANOTHER,
    )


def _models() -> Path | None:
    """Return where the installed transformers keeps its families."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "models"
