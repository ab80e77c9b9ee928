"""Arithmetic over an image's grid of patches, as the Qwen-VL and Pixtral towers do it.

``merge`` x ``merge`` patches form one cell, and a cell becomes one row for the decoder. Patches are
in block order: cell by cell, row by row, and inside a cell row by row. Implements in numpy what
transformers computes in ``transformers.vision_utils``.
"""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Resampling: TypeAlias = Literal["corners", "linear", "cubic"]
"""How a learned table of positions is resampled to a grid.

corners: bilinear, with aligned corners; linear: bilinear, with sample centres at halves; cubic: the
same with four taps on each axis.
"""

SHARPNESS = -0.75  # of the cubic kernel


class Windows(NamedTuple):
    """Square windows over the cells; those at the right and lower edges are smaller.

    Attributes:
        order: ``[cells]`` the cells window by window.
        gather: ``[windows, patches]`` the patches of each window, counted in that order; zeros pad
            smaller windows.
        visible: ``[windows, patches]`` int32, 1 for patches and 0 for padding.
        scatter: ``[patches]`` the index of each patch in ``gather``, flattened.
    """

    order: Integers
    gather: Integers
    visible: NDArray[np.int32]
    scatter: Integers


def block_order(height: int, width: int, merge: int) -> Integers:
    """Return the numbers, row by row, of the patches in block order."""
    numbers = np.arange(height * width).reshape(height // merge, merge, width // merge, merge)
    return numbers.transpose(0, 2, 1, 3).reshape(-1)


def positions(height: int, width: int, merge: int) -> Integers:
    """Return each patch's row and column, ``[patches, 2]``."""
    order = block_order(height, width, merge)
    return np.stack([order // width, order % width], axis=-1)


def windows(height: int, width: int, merge: int, side: int) -> Windows:
    """Cut a grid of patches into windows of ``side`` x ``side`` cells."""
    rows, columns = height // merge, width // merge
    cells = np.arange(rows * columns).reshape(rows, columns)
    parts = [
        cells[top : top + side, left : left + side].reshape(-1)
        for top in range(0, rows, side)
        for left in range(0, columns, side)
    ]
    lengths = np.array([len(part) for part in parts]) * merge * merge
    column = np.arange(lengths.max())[None]
    is_patch = column < lengths[:, None]
    starts = np.cumsum(lengths) - lengths
    return Windows(
        order=np.concatenate(parts),
        gather=np.where(is_patch, starts[:, None] + column, 0),
        visible=is_patch.astype(np.int32),
        scatter=np.flatnonzero(is_patch),
    )


def interpolation(
    height: int, width: int, merge: int, side: int, resampling: Resampling = "corners"
) -> tuple[Integers, NDArray[np.float32]]:
    """Resample a learned ``side`` x ``side`` table to a grid.

    Returns:
        ``[patches, taps]`` entries of the table, and their weights; 4 taps, or 16 where cubic.
    """
    order = block_order(height, width, merge)
    rows, row_weights = _taps(order // width, height, side, resampling)
    columns, column_weights = _taps(order % width, width, side, resampling)
    entries = rows[:, :, None] * side + columns[:, None, :]
    weights = row_weights[:, :, None] * column_weights[:, None, :]
    return entries.reshape(len(order), -1), weights.reshape(len(order), -1)


def _taps(
    index: Integers, size: int, side: int, resampling: Resampling
) -> tuple[Integers, NDArray[np.float32]]:
    """Return the taps of points on one axis, and their weights, ``[points, taps]``."""
    start = index.astype(np.float32)
    if resampling == "corners":
        point = start * np.float32(side - 1) / np.float32(max(size - 1, 1))
    else:
        half = np.float32(0.5)
        point = (start + half) * np.float32(side) / np.float32(size) - half
    below = np.floor(point)
    offsets = np.arange(-1, 3) if resampling == "cubic" else np.arange(2)
    taps = np.clip(below.astype(np.int64)[:, None] + offsets, 0, side - 1)
    distance = np.abs((point - below)[:, None] - offsets.astype(np.float32))
    if resampling == "cubic":
        return taps, _cubic(distance).astype(np.float32)
    return taps, np.clip(1 - distance, 0, None).astype(np.float32)


def _cubic(distance: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the weights of the cubic convolution kernel."""
    near = ((SHARPNESS + 2) * distance - (SHARPNESS + 3)) * distance**2 + 1
    far = SHARPNESS * (((distance - 5) * distance + 8) * distance - 4)
    weights: NDArray[np.float32] = np.where(distance <= 1, near, far)
    return weights
