"""Images become the inputs of a graph: values equal transformers', errors are one sentence."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import CheckpointError, EngineError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.vision import anyres, grid, own
from vlmkit_onnx.vision.anyres import AnyresFeeding
from vlmkit_onnx.vision.encoder import Batches
from vlmkit_onnx.vision.feeding import AnyArray, Floats
from vlmkit_onnx.vision.foreign import ForeignGraph
from vlmkit_onnx.vision.names import FEATURES
from vlmkit_onnx.vision.patches import CropFeeding, GridFeeding, PositionFeeding
from vlmkit_onnx.vision.tiles import TileFeeding

cells = st.integers(1, 12)
merges = st.integers(1, 3)


def slot_of(num_features: int = 1, **arrays: Any) -> MediaSlot:
    made = {name: np.asarray(array) for name, array in arrays.items()}
    return MediaSlot(0, num_features, b"", made, num_features)


class Recorder:
    """Records its inputs, and returns the sum of each image as one row."""

    def __init__(self, name: str = FEATURES) -> None:
        self.name = name
        self.calls: list[dict[str, AnyArray]] = []

    def __call__(self, inputs: Any) -> dict[str, Floats]:
        self.calls.append(dict(inputs))
        pixels = inputs["pixel_values"]
        sums = pixels.reshape(len(pixels), -1).sum(axis=1)
        return {self.name: sums.reshape(-1, 1, 1).astype(np.float32)}


@pytest.mark.torch
@settings(max_examples=60)
@given(rows=cells, columns=cells, merge=merges, side=st.integers(1, 5))
def test_positions_and_windows_of_any_grid_equal_those_of_transformers(
    rows: int, columns: int, merge: int, side: int
) -> None:
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.vision_utils")
    height, width = rows * merge, columns * merge
    thw = torch.tensor([[1, height, width]])
    order, lengths = utils.get_vision_window_index(thw, merge, side * merge, 1)
    places = utils.get_vision_position_ids(thw, merge)

    cut = grid.windows(height, width, merge, side)

    np.testing.assert_array_equal(grid.positions(height, width, merge), places.numpy())
    np.testing.assert_array_equal(cut.order, order.numpy())
    np.testing.assert_array_equal(cut.visible.sum(axis=1), np.diff(lengths.numpy()))
    inside = cut.gather[cut.visible.astype(bool)]
    np.testing.assert_array_equal(inside, np.arange(height * width))
    np.testing.assert_array_equal(cut.gather.reshape(-1)[cut.scatter], np.arange(height * width))


@pytest.mark.torch
@settings(max_examples=60)
@given(
    rows=cells,
    columns=cells,
    merge=merges,
    side=st.integers(1, 20),
    way=st.sampled_from(
        [("corners", "bilinear", True), ("linear", "bilinear", False), ("cubic", "bicubic", False)]
    ),
)
def test_a_table_is_resampled_as_by_transformers(
    rows: int, columns: int, merge: int, side: int, way: tuple[Any, str, bool]
) -> None:
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.vision_utils")
    height, width = rows * merge, columns * merge
    entries, weights = utils.get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, height, width]]), side, *way[1:], merge
    )
    found = grid.interpolation(height, width, merge, side, way[0])

    np.testing.assert_array_equal(found[0], entries.numpy())
    np.testing.assert_allclose(found[1], weights.numpy(), atol=1e-5)


@pytest.mark.torch
@settings(max_examples=100)
@given(
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    grids=st.lists(st.tuples(cells, cells), min_size=1, max_size=12),
)
def test_the_best_resolution_and_unpadding_equal_those_of_transformers(
    height: int, width: int, grids: list[tuple[int, int]]
) -> None:
    torch = pytest.importorskip("torch")
    processing = pytest.importorskip("transformers.image_processing_utils")
    modeling = pytest.importorskip("transformers.models.llava_next.modeling_llava_next")
    resolutions = [(rows * 336, columns * 336) for rows, columns in grids]

    found = anyres.best_resolution(height, width, resolutions)

    assert found == processing.select_best_resolution((height, width), resolutions)
    numbers = np.arange(found[0] // 14 * (found[1] // 14), dtype=np.float32)
    laid = numbers.reshape(found[0] // 14, found[1] // 14, 1)
    theirs = modeling.unpad_image(torch.from_numpy(laid).permute(2, 0, 1), (height, width))
    np.testing.assert_array_equal(anyres.unpad(laid, height, width)[..., 0], theirs[0].numpy())


@pytest.mark.torch
@given(length=st.integers(1, 40), size=st.integers(1, 40))
@settings(max_examples=60)
def test_an_axis_is_resampled_as_by_torch(length: int, size: int) -> None:
    torch = pytest.importorskip("torch")
    line = np.random.default_rng(length).normal(size=(length, 3)).astype(np.float32)
    theirs = torch.nn.functional.interpolate(torch.from_numpy(line.T[None]), [size], mode="linear")
    np.testing.assert_allclose(anyres.resample(line, size), theirs[0].numpy().T, atol=1e-5)


@pytest.mark.parametrize(
    "feeding",
    [
        TileFeeding(),
        GridFeeding(merge=2, window_cells=4, table_side=16),
        GridFeeding(merge=2),
        GridFeeding(merge=2, table_side=4, resampling="cubic", is_raster=True),
        PositionFeeding(merge=3),
        CropFeeding(merge=2, patch_size=14),
        AnyresFeeding(resolutions=[(28, 56)], tile_size=28, tile_rows=2, max_tiles=9),
    ],
)
def test_a_feeding_is_restored_from_the_metadata_of_a_graph(feeding: own.OwnFeeding) -> None:
    assert own.own_feeding(own.written(feeding)) == feeding


@pytest.mark.parametrize("text", ["", "{}", '{"kind":"tea"}', '{"kind":"grid"}', "tiles"])
def test_a_graph_without_a_feeding_in_its_metadata_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="does not say how it is fed") as caught:
        own.own_feeding({own.KEY: text} if text else {})
    assert "vlmkit export" in caught.value.hint


def test_images_of_one_shape_share_calls_up_to_the_limit() -> None:
    random = np.random.default_rng(0)
    tiles = [random.normal(size=(1, count, 3, 4, side)) for count, side in [(3, 4), (1, 8), (4, 4)]]
    run = Recorder()

    rows = Batches(TileFeeding(), 5).compute([slot_of(pixel_values=t) for t in tiles], run)

    assert [call["pixel_values"].shape[0] for call in run.calls] == [5, 2, 1]
    for tile, own_rows in zip(tiles, rows, strict=True):
        expected = tile[0].reshape(tile.shape[1], -1).sum(axis=1)
        np.testing.assert_allclose(own_rows[FEATURES][:, 0], expected, rtol=1e-5)


def test_empty_tiles_are_left_out() -> None:
    mask = np.ones((1, 3, 4, 4), bool)
    mask[0, 2] = False
    slot = slot_of(pixel_values=np.ones((1, 3, 3, 4, 4)), pixel_attention_mask=mask)
    assert TileFeeding().pictures(slot).pixels.shape == (2, 3, 4, 4)


def test_a_padded_tile_is_refused() -> None:
    mask = np.ones((1, 1, 4, 4), bool)
    mask[..., 3] = False
    slot = slot_of(pixel_values=np.ones((1, 1, 3, 4, 4)), pixel_attention_mask=mask)
    with pytest.raises(EngineError, match="a tile of an image is padded"):
        TileFeeding().pictures(slot)


def test_an_image_without_its_array_is_refused_by_name() -> None:
    with pytest.raises(EngineError, match="needs 'pixel_values'"):
        TileFeeding().pictures(slot_of())
    with pytest.raises(EngineError, match="needs 'image_grid_thw'"):
        GridFeeding(merge=2).pictures(slot_of(pixel_values=np.ones((4, 6))))
    with pytest.raises(EngineError, match="needs 'image_sizes'"):
        CropFeeding(merge=2, patch_size=2).pictures(slot_of(pixel_values=np.ones((1, 3, 4, 4))))


@pytest.mark.parametrize("sizes", [[1, 4, 4], [1, 3, 2], [2, 4, 2]])
def test_patches_that_do_not_fill_their_grid_are_refused(sizes: list[int]) -> None:
    slot = slot_of(pixel_values=np.ones((6, 12)), image_grid_thw=[sizes])
    with pytest.raises(EngineError, match="patch values and a grid of"):
        GridFeeding(merge=2).pictures(slot)


def test_patches_row_by_row_are_ordered_cell_by_cell() -> None:
    pixels = np.arange(8)[:, None, None] * np.ones((8, 2, 2))
    slot = slot_of(pixel_values=pixels, image_grid_thw=[[1, 2, 4]])
    found = GridFeeding(merge=2, is_raster=True).pictures(slot).pixels
    assert found.shape == (1, 8, 4)
    assert found[0, :, 0].tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def placed(height: int, width: int, most: int) -> MediaSlot:
    places = np.full((1, most, 2), -1)
    places[0, : height * width] = np.indices((height, width))[::-1].reshape(2, -1).T
    pixels = np.arange(most)[None, :, None] * np.ones((1, most, 3))
    return slot_of(pixel_values=pixels, image_position_ids=places)


def test_patches_with_positions_are_ordered_cell_by_cell_without_padding() -> None:
    feeding = PositionFeeding(merge=2)
    images = feeding.pictures(placed(2, 4, 12))
    assert images.group == (2, 4)
    assert images.pixels[0, :, 0].tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    places = feeding.inputs(images.pixels, images.group)["position_ids"]
    assert places[:5].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0]]


@pytest.mark.parametrize(("height", "width", "first"), [(2, 3, 0), (0, 0, 0), (2, 4, 1), (2, 2, 3)])
def test_positions_that_form_no_grid_of_cells_are_refused(
    height: int, width: int, first: int
) -> None:
    slot = placed(height, width, 12)
    slot.inputs["image_position_ids"][0] = np.roll(slot.inputs["image_position_ids"][0], first, 0)
    with pytest.raises(EngineError, match="patches in a grid of"):
        PositionFeeding(merge=2).pictures(slot)


def test_rows_of_several_levels_are_packed_alike_and_nothing_is_at_the_bottom() -> None:
    feeding = AnyresFeeding(resolutions=[(28, 56)], tile_size=28, tile_rows=1)
    levels = {f"deepstack.{n}": np.full((1, 1, 8), n + 1, np.float32) for n in range(2)}
    outputs = {**levels, "image_newline": np.zeros((1, 8), np.float32)}
    rows = feeding.rows(slot_of(image_sizes=[[28, 28]]), outputs)
    assert {name: array.sum() for name, array in rows.items()} == {
        FEATURES: 0,
        "deepstack.0": 8,
        "deepstack.1": 16,
    }
    assert {array.shape for array in rows.values()} == {(2, 8)}


def test_tiles_that_do_not_fill_their_resolution_are_refused() -> None:
    feeding = AnyresFeeding(resolutions=[(28, 56)], tile_size=28, tile_rows=1)
    slot = slot_of(pixel_values=np.ones((1, 4, 3, 28, 28)), image_sizes=[[28, 56]])
    outputs = {FEATURES: np.ones((4, 1, 8), np.float32), "image_newline": np.ones((4, 8))}
    with pytest.raises(EngineError, match="has 3 tiles of 1 rows, expected 2 of 1"):
        feeding.rows(slot, outputs)


def test_an_image_of_one_tile_has_the_tile_and_a_line_end() -> None:
    feeding = AnyresFeeding(resolutions=[(28, 56)], tile_size=28, tile_rows=1)
    outputs = {FEATURES: np.ones((1, 1, 8), np.float32), "image_newline": np.zeros((1, 8))}
    rows = feeding.rows(slot_of(image_sizes=[[28, 28]]), outputs)[FEATURES]
    assert rows.sum(axis=1).tolist() == [8, 0]


def test_a_foreign_graph_gets_its_named_arrays_with_the_right_rank() -> None:
    axes = {"pixel_values": 2, "grid_thw": 2, "mask": 5}
    graph = ForeignGraph(axes, ["rows"], {"pixel_attention_mask": "mask", FEATURES: "rows"})
    arrays = {"pixel_values": np.ones((1, 6, 4)), "image_grid_thw": np.array([[1, 2, 3]])}
    slot = slot_of(**arrays, pixel_attention_mask=np.ones((2, 4, 4)))
    run = Recorder("rows")

    rows = graph.compute([slot, slot], run)

    assert len(run.calls) == len(rows) == 2
    assert {name: array.ndim for name, array in run.calls[0].items()} == axes
    assert rows[0][FEATURES].shape == (6, 1)


def test_a_foreign_graph_with_unknown_inputs_is_refused() -> None:
    with pytest.raises(CheckpointError, match="takes 'pixel_position_ids'"):
        ForeignGraph({"pixel_values": 4, "pixel_position_ids": 2}, [FEATURES], {})


def test_a_foreign_graph_without_features_is_refused() -> None:
    with pytest.raises(CheckpointError, match="must take 'pixel_values' and give 'image_features'"):
        ForeignGraph({"pixel_values": 4}, ["logits"], {})


def test_an_array_with_too_many_axes_for_a_foreign_graph_is_refused() -> None:
    graph = ForeignGraph({"pixel_values": 3}, [FEATURES], {})
    with pytest.raises(EngineError, match="too many axes"):
        graph.compute([slot_of(pixel_values=np.ones((2, 3, 4, 4)))], Recorder())
