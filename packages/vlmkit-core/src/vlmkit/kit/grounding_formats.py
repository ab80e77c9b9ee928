"""The grounding formats of common model families, by ``model_type``; data only."""

from collections.abc import Mapping

from vlmkit.interfaces.grounding_format import GroundingFormat, JsonGrounding, MarkedGrounding

_NUMBERS = r"[\d\s,()\[\]]{1,4000}"

QWEN2_VL = MarkedGrounding(
    r"(?:<\|object_ref_start\|>(?P<label>[^<]{0,500})<\|object_ref_end\|>)?"
    rf"<\|box_start\|>(?P<places>{_NUMBERS})<\|box_end\|>"
)
QWEN2_5_VL = JsonGrounding(extent=None)
QWEN3_VL = JsonGrounding()
INTERNVL = MarkedGrounding(
    rf"(?:<ref>(?P<label>[^<]{{0,500}})</ref>)?<box>(?P<places>{_NUMBERS})</box>"
)
GLM4V = MarkedGrounding(rf"<\|begin_of_box\|>(?P<places>{_NUMBERS})<\|end_of_box\|>")
PALIGEMMA = MarkedGrounding(
    r"(?P<places>(?:<loc\d{4}>){4}) ?(?P<label>[^<;\n]{0,500})", extent=1024, is_row_first=True
)

BY_FAMILY: Mapping[str, GroundingFormat] = {
    "qwen2_vl": QWEN2_VL,
    "qwen2_5_vl": QWEN2_5_VL,
    "qwen3_vl": QWEN3_VL,
    "qwen3_vl_moe": QWEN3_VL,
    "internvl": INTERNVL,
    "glm4v": GLM4V,
    "glm4v_moe": GLM4V,
    "paligemma": PALIGEMMA,
}
"""Families that vlmkit runs and whose authors document their format of boxes and points."""
