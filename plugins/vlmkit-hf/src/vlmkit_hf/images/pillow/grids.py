"""The rules by which families choose a grid of tiles for an image.

Every rule takes the size of an image and returns rows and columns. Some families compute in
float32, which decides between two grids that are nearly equally good.
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
        """Return the size of the whole grid."""
        return Size(self.rows * tile.height, self.columns * tile.width)

    @property
    def num_tiles(self) -> int:
        """The number of tiles."""
        return self.rows * self.columns


def up_to(most: int, least: int = 1) -> list[Grid]:
    """Return the grids of ``least`` to ``most`` tiles: fewer tiles first, then the narrower."""
    sides = range(1, most + 1)
    grids = [Grid(rows, columns) for columns in sides for rows in range(1, most // columns + 1)]
    return sorted((g for g in grids if g.num_tiles >= least), key=lambda grid: grid.num_tiles)


def as_pairs(most: int, least: int = 1) -> list[Grid]:
    """Return the same by number of tiles, then in the order of transformers' sets of pairs."""
    pairs = [
        (columns, rows)
        for num_tiles in range(least, most + 1)
        for columns in range(1, num_tiles + 1)
        for rows in range(1, num_tiles + 1)
        if least <= columns * rows <= most
    ]
    return [Grid(rows, columns) for columns, rows in sorted(set(pairs), key=math.prod)]


def least_stretched(size: Size, tile: Size, grids: Sequence[Grid], kind: type[Any] = float) -> Grid:
    """Return the grid that needs the least enlargement of an image, or else the least reduction.

    Args:
        size: the size of the image.
        tile: the size of a tile.
        grids: the candidates; the first of equals wins.
        kind: the type of numbers to compute with.
    """
    canvas = np.asarray(grids) * np.asarray(tile)
    with np.errstate(divide="ignore"):  # an image no larger than its margins has size 0 here
        scales = (canvas.astype(kind) / np.asarray(size, kind)).min(-1)
    if (scales < 1).all():
        return grids[int(scales.argmax())]
    return grids[int(np.where(scales < 1, 10e9, scales).argmin())]


def nearest_in_shape(size: Size, tile: Size, grids: Sequence[Grid]) -> Grid:
    """Return the grid whose aspect ratio is nearest to an image's.

    Of equals, the last one wins whose area is at most twice that of the image.
    """
    best, least = Grid(1, 1), math.inf
    for grid in grids:
        difference = abs(size.width / size.height - grid.columns / grid.rows)
        is_large = size.width * size.height > 0.5 * tile.width * tile.height * grid.num_tiles
        if difference < least or (difference == least and is_large):
            best, least = grid, difference
    return best


def by_shape(most: int) -> dict[float, list[Grid]]:
    """Return grids by their ratio of columns to rows, those with more tiles first."""
    shapes: dict[float, list[Grid]] = {}
    for num_tiles in range(most, 0, -1):
        for columns in range(1, num_tiles + 1):
            if num_tiles % columns == 0:
                rows = num_tiles // columns
                shapes.setdefault(columns / rows, []).append(Grid(rows, columns))
    return shapes


def largest_short_side(size: Size, tile: int, most: int) -> Grid:
    """Return the grid that contains an image and shows its shorter side largest.

    The last of equals wins. If none contains the image, return the most tiles of the nearest aspect
    ratio.
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
    """Return an image's shorter side after scaling it to fit a canvas."""
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
    """Return the smallest grid that enlarges an image least, or else reduces it least.

    Args:
        size: the size of the image.
        tile: the side of a tile.
        most: the most tiles.
        is_largest: enlarge the image most instead.
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
    """Return a grid of slices near an image's area and aspect ratio; None for a single slice.

    Of equally near grids, the one with more rows wins.
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
