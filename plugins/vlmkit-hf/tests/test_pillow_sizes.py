"""Resized sizes and grids equal those of transformers."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.models.got_ocr2 import image_processing_pil_got_ocr2 as got_ocr2
from transformers.models.idefics3 import image_processing_pil_idefics3 as idefics3
from transformers.models.pixtral import image_processing_pil_pixtral as pixtral
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as qwen2_vl

from vlmkit_hf.images.pillow import grids, sizes
from vlmkit_hf.images.size import Size

SIDES = st.integers(1, 5000)
SIZES = st.builds(Size, SIDES, SIDES)
TILES = st.integers(14, 800)


def shown(size: Size) -> Any:
    return np.broadcast_to(np.uint8(0), (3, *size))


@given(SIZES, TILES, st.integers(1, 10**5), st.integers(10**5, 10**8))
def test_sizes_with_an_area_between_two_limits_equal_those_of_transformers(
    size: Size, side: int, least: int, most: int
) -> None:
    if max(size) / min(size) > sizes.MOST_STRETCHED:
        with pytest.raises(ValueError, match="200 times"):
            sizes.patches_in_area(size, side, least, most)
        return
    wanted = qwen2_vl.smart_resize(*size, factor=side, min_pixels=least, max_pixels=most)
    assert sizes.patches_in_area(size, side, least, most) == wanted


@given(SIZES, st.integers(1, 4000), st.integers(1, 64))
def test_sizes_with_a_longer_side_in_whole_patches_equal_those_of_transformers(
    size: Size, edge: int, side: int
) -> None:
    wanted = pixtral.get_resize_output_image_size(shown(size), edge, side, "channels_first")
    assert sizes.within_edge(size, edge, side) == wanted


@given(SIZES, st.integers(1, 6000))
def test_sizes_before_splitting_equal_those_of_transformers(size: Size, edge: int) -> None:
    assert sizes.resized_to_split(size, edge) == idefics3.get_resize_output_image_size(
        shown(size), edge
    )


@given(SIZES, st.lists(st.tuples(TILES, TILES), min_size=1, max_size=12))
def test_the_selected_canvas_equals_that_of_transformers(
    size: Size, canvases: list[tuple[int, int]]
) -> None:
    canvas = sizes.best_canvas(size, canvases)
    wanted = select_best_resolution(size, canvases)
    assert canvas == (wanted or (0, 0))
    if wanted:
        used = get_patch_output_size(shown(size), wanted, "channels_first")
        assert sizes.within_canvas(size, canvas) == used


@given(SIZES, TILES, st.integers(1, 3), st.integers(3, 40))
def test_the_selected_grid_equals_that_of_transformers(
    size: Size, side: int, least: int, most: int
) -> None:
    tile = Size(side, side)
    columns, rows = got_ocr2.get_optimal_tiled_canvas(tuple(size), tuple(tile), least, most)
    assert grids.nearest_in_shape(size, tile, grids.up_to(most, least)) == (rows, columns)
    assert math.prod((rows, columns)) <= most
