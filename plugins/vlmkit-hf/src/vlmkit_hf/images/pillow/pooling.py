"""Of which patches each token is made, where a picture is shown in crops that overlap."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlmkit_hf.images.pillow.grids import Grid
from vlmkit_hf.images.pillow.pixels import Pixels


def of_crops(
    grid: Grid, side: int, margins: Sequence[int], windows: Sequence[int]
) -> Mapping[str, Any]:
    """Return the patches of each token, and rows and columns of tokens.

    The first crop shows the whole picture, the others parts of it; of what two of those show, the
    outer patches of each are left out.

    Args:
        grid: of the other crops.
        side: patches along a side of a crop.
        margins: patches left out before and after.
        windows: rows and columns of patches that make a token.
    """
    whole = np.arange(side * side).reshape(side, side)
    index = np.arange(grid.num_tiles * side * side).reshape(*grid, side, side)
    before, after = margins
    parts = [
        [
            index[row, column][
                before if row else 0 : side - after if row < grid.rows - 1 else side,
                before if column else 0 : side - after if column < grid.columns - 1 else side,
            ]
            for column in range(grid.columns)
        ]
        for row in range(grid.rows)
    ]
    local = np.block(parts) + side * side
    (first, its_size), (rest, their_size) = (_pooled(each, windows) for each in (whole, local))
    return {
        "image_token_pooling": np.concatenate([first, rest]).astype(np.int32),
        "image_grids": [(*its_size, *their_size)],
    }


def _pooled(index: Pixels, windows: Sequence[int]) -> tuple[Pixels, Grid]:
    """Return the patches in each window, -1 beyond the picture, and how many windows there are."""
    over = [-length % side for length, side in zip(index.shape, windows, strict=True)]
    index = np.pad(index, [(n // 2, n - n // 2) for n in over], constant_values=-1)
    sizes = (length // side for length, side in zip(index.shape, windows, strict=True))
    grid = Grid(*sizes)
    parts = index.reshape(grid.rows, windows[0], grid.columns, windows[1]).swapaxes(1, 2)
    return parts.reshape(grid.num_tiles, -1), grid
