"""Reads the source of the installed transformers: its families, and the code of each.

Imports none of it, because that would take seconds.
"""

import importlib.util
import re
from pathlib import Path

from vlmkit.kit.objection import Objection

ANOTHER = "take a model of another family"

NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)  # of a family; a checkpoint may state anything
# Present where the first position follows the padding token's id.
POSITIONS = "def create_position_ids_from_input_ids("
# Present where attention can be replaced.
REPLACEABLE = "ALL_ATTENTION_FUNCTIONS"
ATTENTION = re.compile(r"^class \w*Attention\w*\(nn\.Module\):", re.MULTILINE)


def is_known(model_type: str) -> bool:
    """Return whether the installed transformers lists the family."""
    families = _families()
    return families is None or f'("{model_type}", ' in families  # why_not() has the better reason


def takes_images(model_type: str) -> bool:
    """Return whether it lists the family among those that answer about images.

    Some have no tower: their decoder takes tokens of a codebook (Emu3). One is listed with a class
    for text (Mistral 4, which takes images only as a part of Mistral 3).
    """
    _, _, rest = (_families() or "").partition("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES = ")
    line = re.search(rf'\("{re.escape(model_type)}", "(\w+)"', rest.partition("\n)")[0])
    return line is not None and not line[1].endswith("ForCausalLM")


def _families() -> str | None:
    """Return the source of transformers' lists of families."""
    folder = _models()
    return None if folder is None else (folder / "auto" / "modeling_auto.py").read_text("utf-8")


def source_of(model_type: str) -> str:
    """Return the source of a family's models; empty if its file has another name."""
    name, folder = model_type.replace("-", "_"), _models()
    if folder is None or NAME.fullmatch(name) is None:
        return ""
    return "".join(file.read_text("utf-8") for file in folder.glob(f"*/modeling_{name}.py"))


def code_objection(model_type: str) -> Objection | None:
    """Return what in the code of a decoder's family is not supported; None if nothing is known.

    The code of a family that takes images is skipped, because it may be the code of a tower.
    """
    code = "" if takes_images(model_type) else source_of(model_type)
    if ATTENTION.search(code) and REPLACEABLE not in code:
        return attention_objection(model_type)
    if POSITIONS in code:
        what = "positions that are counted from the id of the padding token"
        return Objection(f"{what} are not supported", hint=ANOTHER)
    return None


def attention_objection(model_type: str) -> Objection:
    """Return the objection to a family whose attention cannot be replaced."""
    return Objection(
        f"model type {model_type!r} computes attention in code of its own, which paged attention "
        "cannot replace",
        hint=ANOTHER,
    )


def _models() -> Path | None:
    """Return the folder of transformers' families."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "models"
