"""Into how many tiles a picture is cut: the rules by which families choose a grid.

Every rule takes the picture's size and gives rows and columns. Families compute some of them in
float32, and where two grids are nearly as good that decides.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vlmkit_hf.images.size import Size


class Grid(NamedTuple):
    """Rows and columns of tiles."""

    rows: int
    columns: int

    def of(self, tile: Size) -> Size:
        """Return the size of so many tiles."""
        return Size(self.rows * tile.height, self.columns * tile.width)

    @property
    def num_tiles(self) -> int:
        """How many there are."""
        return self.rows * self.columns


def up_to(most: int, least: int = 1) -> list[Grid]:
    """Return the grids of so many tiles: fewer tiles first, and of as many the narrower."""
    sides = range(1, most + 1)
    grids = [Grid(rows, columns) for columns in sides for rows in range(1, most // columns + 1)]
    return sorted((g for g in grids if g.num_tiles >= least), key=lambda grid: grid.num_tiles)


def as_pairs(most: int, least: int = 1) -> list[Grid]:
    """Return the same by number of tiles; of as many, as transformers' sets of pairs have them."""
    pairs = [
        (columns, rows)
        for num_tiles in range(least, most + 1)
        for columns in range(1, num_tiles + 1)
        for rows in range(1, num_tiles + 1)
        if least <= columns * rows <= most
    ]
    return [Grid(rows, columns) for columns, rows in sorted(set(pairs), key=math.prod)]


def least_stretched(size: Size, tile: Size, grids: Sequence[Grid], kind: type[Any] = float) -> Grid:
    """Return the grid into which a picture fits with the least enlargement, else reduction.

    Args:
        size: of the picture.
        tile: size of a tile.
        grids: to choose from; the first of equals is taken.
        kind: the numbers that are computed with.
    """
    canvas = np.asarray(grids) * np.asarray(tile)
    with np.errstate(divide="ignore"):  # what is as small as its margins has no size of its own
        scales = (canvas.astype(kind) / np.asarray(size, kind)).min(-1)
    if (scales < 1).all():
        return grids[int(scales.argmax())]
    return grids[int(np.where(scales < 1, 10e9, scales).argmin())]


def nearest_in_shape(size: Size, tile: Size, grids: Sequence[Grid]) -> Grid:
    """Return the grid whose shape is nearest to a picture's.

    Of those as near, the last that is not more than twice as large as the picture.
    """
    best, least = Grid(1, 1), math.inf
    for grid in grids:
        difference = abs(size.width / size.height - grid.columns / grid.rows)
        is_large = size.width * size.height > 0.5 * tile.width * tile.height * grid.num_tiles
        if difference < least or (difference == least and is_large):
            best, least = grid, difference
    return best


def by_shape(most: int) -> dict[float, list[Grid]]:
    """Return grids by columns to rows, those of more tiles before those of fewer."""
    shapes: dict[float, list[Grid]] = {}
    for num_tiles in range(most, 0, -1):
        for columns in range(1, num_tiles + 1):
            if num_tiles % columns == 0:
                rows = num_tiles // columns
                shapes.setdefault(columns / rows, []).append(Grid(rows, columns))
    return shapes


def roomiest(size: Size, tile: int, most: int) -> Grid:
    """Return the grid that holds a picture and shows its shorter side largest.

    The last of equals. Where none holds it, the most tiles of the shape nearest to the picture's.
    """
    shapes, shape = by_shape(most), size.width / size.height
    best: Grid | None = None
    largest = 0.0
    for grid in (grid for grids in shapes.values() for grid in grids):
        canvas = grid.of(Size(tile, tile))
        if canvas.width < size.width or canvas.height < size.height:
            continue
        short = _short_side(size, canvas)
        if best is None or short >= largest:
            best, largest = grid, short
    if best is not None:
        return best
    if shape >= 1:
        near = min((s for s in shapes if s <= shape), key=lambda s: abs(s - shape))
        return max(shapes[near], key=lambda grid: grid.columns)
    near = min((s for s in shapes if s > shape), key=lambda s: abs(1 / s - 1 / shape))
    return max(shapes[near], key=lambda grid: grid.rows)


def _short_side(size: Size, canvas: Size) -> float:
    """Return a picture's shorter side when it is as large as a canvas holds."""
    shape, factor = (
        size.width / size.height,
        min(canvas.width / size.width, canvas.height / size.height),
    )
    if shape > 1:
        return math.floor(factor * size.width / shape)
    if shape == 1:
        return factor * size.height
    return math.floor(factor * size.height * shape)


def least_scaled(size: Size, tile: int, most: int, *, is_largest: bool) -> Grid:
    """Return the grid that enlarges a picture least, else reduces it least, with the least area.

    Args:
        size: of the picture.
        tile: side of a tile.
        most: tiles.
        is_largest: it enlarges a picture most.
    """
    grids = [grid for same in by_shape(most).values() for grid in same]
    canvas = np.asarray(grids, np.float32) * np.float32(tile)
    scales = (canvas / np.asarray(size, np.float32)).min(-1)
    enlarging = scales[scales >= 1]
    if len(enlarging):
        chosen = enlarging.max() if is_largest else enlarging.min()
    else:
        chosen = scales.max()
    best = [grid for grid, scale in zip(grids, scales, strict=True) if scale == chosen]
    return min(best, key=lambda grid: grid.num_tiles)


def sliced(size: Size, side: int, most: int) -> Grid | None:
    """Return about as many slices as squares of a side fit, in the picture's shape; None for one.

    Of grids as near in shape, the one of more rows.
    """
    wanted = min(math.ceil(size.width * size.height / (side * side)), most)
    if wanted <= 1:
        return None
    shape = math.log(size.width / size.height)
    best, least = Grid(1, 1), math.inf
    for num_slices in (wanted - 1, wanted, wanted + 1):
        for rows in range(1, num_slices + 1 if 1 < num_slices <= most else 1):
            if num_slices % rows:
                continue
            grid = Grid(rows, num_slices // rows)
            difference = abs(shape - math.log(grid.columns / grid.rows))
            if difference < least or (difference == least and rows > best.rows):
                best, least = grid, difference
    return best
