"""Boxes and points of answers, in the formats of each family, as pixels of the upright image."""

import re

import pytest
from hypothesis import example, given, strategies as st

from vlmkit.interfaces.grounding_format import GroundingFormat, MarkedGrounding
from vlmkit.kit import grounding_formats as forms
from vlmkit.running.engine_loop.grounding import MAX_CHARS, MAX_REGIONS, find_regions
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.transform import Transform

SHOWN = Transform(
    source_size=(200, 400),
    turned=False,
    upright_size=(200, 400),
    used_size=(100, 100),
    scale=(0.5, 0.25),
)
"""An image of 400 by 200 pixels, scaled to 100 by 100 for the model."""

CAT = GroundedRegion("cat", box=(100.0, 20.0, 200.0, 100.0))
HERE = GroundedRegion("cat", box=(40.0, 20.0, 80.0, 100.0))
WHOLE = GroundedRegion("", box=(0.0, 0.0, 400.0, 200.0))


@pytest.mark.parametrize(
    ("form", "text", "regions"),
    [
        (
            forms.QWEN2_VL,
            "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(250,100),(500,500)<|box_end|>",
            (CAT,),
        ),
        (forms.QWEN2_VL, "<|box_start|>(0,0),(1000,1000)<|box_end|>", (WHOLE,)),
        (
            forms.QWEN2_5_VL,
            '```json\n[\n\t{"bbox_2d": [10, 10, 20, 50], "label": "cat"}\n]\n```',
            (HERE,),
        ),
        (
            forms.QWEN3_VL,
            '[{"bbox_2d": [250, 100, 500, 500], "label": "cat"}, {"point_2d": [500, 500]}]',
            (CAT, GroundedRegion("", point=(200.0, 100.0))),
        ),
        (
            forms.INTERNVL,
            "<ref>cat</ref><box>[[250, 100, 500, 500], [0, 0, 1000, 1000]]</box>",
            (CAT, GroundedRegion("cat", box=WHOLE.box)),
        ),
        (forms.GLM4V, "It is <|begin_of_box|>[[0,0,1000,1000]]<|end_of_box|>", (WHOLE,)),
        (
            forms.PALIGEMMA,
            "<loc0102><loc0256><loc0512><loc0512> cat ; <loc0000><loc0000><loc1023><loc1023> dog",
            (
                GroundedRegion("cat", box=(100.0, 19.92, 200.0, 100.0)),
                GroundedRegion("dog", box=(0.0, 0.0, 399.61, 199.8)),
            ),
        ),
    ],
)
def test_regions_are_parsed_in_the_format_of_each_family(
    form: GroundingFormat, text: str, regions: tuple[GroundedRegion, ...]
) -> None:
    assert find_regions(text, form, SHOWN) == regions


@pytest.mark.parametrize(
    "text",
    [
        "no place",
        '{"bbox_2d": [1, 2, 3]}',
        '{"bbox_2d": ["1", 2, 3, 4]}',
        '{"bbox_2d": [1, 2, 3, 1e400]}',
        '{"bbox_2d": [1, 2, 3, NaN]}',
        '{"bbox_2d": [true, 2, 3, 4]}',
        '{"bbox_2d": [1, 2, 3, 4',
        '{"point_2d": {}}',
    ],
)
def test_text_that_is_no_region_is_skipped(text: str) -> None:
    assert find_regions(text, forms.QWEN3_VL, SHOWN) == ()


def test_coordinates_are_clipped_to_the_image_and_corners_ordered() -> None:
    text = '{"bbox_2d": [2000, 900, -5, 100], "label": 7}'

    assert find_regions(text, forms.QWEN3_VL, SHOWN) == (
        GroundedRegion("", box=(0.0, 20.0, 400.0, 180.0)),
    )


def test_the_text_searched_and_the_number_of_regions_are_bounded() -> None:
    one = '{"point_2d": [1, 1]}'

    assert len(find_regions(one * (MAX_REGIONS + 1), forms.QWEN3_VL, SHOWN)) == MAX_REGIONS
    assert find_regions(" " * MAX_CHARS + one, forms.QWEN3_VL, SHOWN) == ()


WORDS = [
    "<box>",
    "</box>",
    "<ref>",
    "</ref>",
    "<loc0001>",
    "{",
    "}",
    "[[1,2,3,4]]",
    "1,",
    " ",
    "cat",
]
WORDS += ["<|box_start|>", "<|box_end|>", "<|object_ref_start|>", '"bbox_2d": [1,2,3,4]', "\n", "("]


@given(
    text=st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=40).map("".join),
    form=st.sampled_from(sorted(forms.BY_FAMILY)),
)
@example(text='{"bbox_2d": [1' + "0" * 400 + ", 2, 3, 4]}", form="qwen3_vl")
def test_regions_of_any_text_lie_inside_the_image(text: str, form: str) -> None:
    for region in find_regions(text, forms.BY_FAMILY[form], SHOWN):
        assert (region.box is None) != (region.point is None)
        left, top, right, bottom = region.box or (*(region.point or ()), 400, 200)
        assert 0 <= left <= right <= 400
        assert 0 <= top <= bottom <= 200


def test_every_pattern_has_the_groups_that_are_read() -> None:
    marked = [form for form in forms.BY_FAMILY.values() if isinstance(form, MarkedGrounding)]
    assert all("places" in re.compile(form.pattern).groupindex for form in marked)
