"""Scenes: the content of the images for the demo model.

A scene is a few things (shapes, at most one digit, at most one printed word) on a three by three
grid, and a background. The module only samples scenes; ``picture.py`` draws them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

T = TypeVar("T")
Split = Literal["train", "held_out"]
Colour = tuple[int, int, int]

COLOURS: dict[str, tuple[Colour, ...]] = {
    "red": ((255, 0, 0), (220, 20, 60), (200, 30, 30), (230, 50, 40)),
    "orange": ((255, 165, 0), (255, 140, 0), (245, 130, 20)),
    "yellow": ((255, 255, 0), (255, 230, 0), (250, 220, 40)),
    "green": ((0, 128, 0), (0, 200, 0), (40, 160, 60), (0, 255, 0), (34, 139, 34)),
    "blue": ((0, 0, 255), (30, 60, 220), (30, 100, 230), (20, 40, 160)),
    "purple": ((128, 0, 128), (120, 40, 180), (148, 0, 211)),
    "pink": ((255, 105, 180), (255, 150, 200), (255, 182, 193)),
    "black": ((0, 0, 0), (20, 20, 20)),
    "white": ((255, 255, 255), (245, 245, 245)),
}
SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross", "heart")
DIGITS = tuple("0123456789")
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
NAMES = SHAPES + DIGITS + LETTERS  # the possible owners of a patch of an image
SIZES = ("small", "large")
PLACES = (
    "at the top left", "at the top", "at the top right",
    "on the left", "in the centre", "on the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip
LONGEST_WORD = 6
SQUARE = 0.88  # the side of a square whose extent is one
GRID = 8  # along a side of the vision tower's input
_LIGHT: tuple[Colour, ...] = (
    (255, 255, 255), (255, 255, 255), (245, 245, 245), (225, 225, 225), (250, 245, 225),
    (225, 235, 250), (230, 245, 230),
)  # fmt: skip
_DARK: tuple[Colour, ...] = ((0, 0, 0), (30, 30, 30), (60, 60, 60), (25, 30, 60), (95, 95, 95))
TOO_CLOSE = 110.0  # summed absolute RGB distance below which a thing is lost on its background


@dataclass(frozen=True)
class Thing:
    """One shape, digit or word.

    ``name`` is the shape, the digit or the word itself; ``cell`` counts the grid in reading order;
    ``x``, ``y`` is the centre and ``extent`` the diameter (letter height for a word), as fractions
    of the width, height and shorter side of the image.
    """

    kind: Literal["shape", "digit", "word"]
    name: str
    colour: str
    size: str
    cell: int
    x: float
    y: float
    extent: float

    @property
    def place(self) -> str:
        """The position of the thing in words."""
        return PLACES[self.cell]

    def held_out(self) -> bool:
        """Return whether training excludes this word, or this colour, name and cell together."""
        if self.kind == "word":
            return sum(map(ord, self.name)) % 11 == 0
        code = 3 * list(COLOURS).index(self.colour) + 5 * NAMES.index(self.name) + 7 * self.cell
        return code % 11 == 0


@dataclass(frozen=True)
class Scene:
    """Things in reading order, the background and the size of the source image (height, width)."""

    things: tuple[Thing, ...]
    background: Colour
    height: int
    width: int

    @property
    def shapes(self) -> tuple[Thing, ...]:
        """The things that are shapes."""
        return tuple(t for t in self.things if t.kind == "shape")

    @property
    def digit(self) -> Thing | None:
        """The digit, if there is one."""
        return next((t for t in self.things if t.kind == "digit"), None)

    @property
    def word(self) -> Thing | None:
        """The word, if there is one."""
        return next((t for t in self.things if t.kind == "word"), None)


def sample_scene(
    rng: np.random.Generator, split: Split = "train", most: int = 5, content: str | None = None
) -> Scene:
    """Draw a random scene.

    Args:
        rng: source of randomness.
        split: ``train`` scenes have no held-out combination; ``held_out`` scenes have at least one.
        most: largest number of things.
        content: ``shapes``, ``digit`` or ``word`` to force the content.

    Returns:
        The scene.
    """
    while True:
        scene = _sample(rng, most, content)
        marks = [t.held_out() for t in scene.things]
        if not any(marks) if split == "train" else any(marks):
            return scene


def _sample(rng: np.random.Generator, most: int, content: str | None) -> Scene:
    height, width = _source_size(rng)
    background = pick(rng, _LIGHT if rng.random() < 0.7 else _DARK)
    count = min(most, int(rng.choice(6, p=[0.01, 0.33, 0.26, 0.21, 0.11, 0.08])))
    if content is None:
        content = str(rng.choice(["shapes", "digit", "word", "both"], p=[0.5, 0.2, 0.26, 0.04]))
    if content != "shapes":
        count = max(count, 1)
    cells = list(rng.permutation(9))
    things: list[Thing] = []
    if content in ("word", "both"):
        row = int(rng.integers(3))
        cells = [c for c in cells if c // 3 != row]
        count = min(count, 4)
        things.append(_word(rng, row, width / height))
    if content in ("digit", "both"):
        things.append(_glyph(rng, "digit", int(cells.pop()), count))
    things += [_glyph(rng, "shape", int(cells.pop()), count) for _ in range(count - len(things))]
    colours = [c for c, shades in COLOURS.items() if distance(shades[0], background) > TOO_CLOSE]
    repeat = rng.random() < 0.3  # few colours and shapes, so counts exceed one
    palette = list(rng.permutation(colours))[: 2 if repeat else 9]
    forms = list(rng.permutation(SHAPES))[: 2 if repeat else 7]
    things = [_aligned(rng, _dress(rng, t, palette, forms), height, width) for t in things]
    if _overlap(things, height, width):
        return _sample(rng, most, content)
    return Scene(tuple(sorted(things, key=lambda t: t.cell)), background, height, width)


def sample_page(rng: np.random.Generator) -> Scene:
    """Draw a page of words and digits, from which the vision tower learns to read.

    No questions are about pages, because a scene of a question has at most one word and one digit.
    """
    while True:
        height, width = _source_size(rng)
        background = pick(rng, _LIGHT if rng.random() < 0.7 else _DARK)
        things = []
        for row in range(3):
            if rng.random() < 0.6:
                things.append(_word(rng, row, width / height))
            else:
                things += [_glyph(rng, "digit", 3 * row + column, 5) for column in range(3)]
        colours = [c for c, s in COLOURS.items() if distance(s[0], background) > TOO_CLOSE]
        things = [_dress(rng, t, colours, list(SHAPES)) for t in things]
        if not _overlap(things, height, width) and not any(t.held_out() for t in things):
            return Scene(tuple(things), background, height, width)


def _dress(rng: np.random.Generator, thing: Thing, palette: list[str], forms: list[str]) -> Thing:
    name = str(pick(rng, forms)) if thing.kind == "shape" else thing.name
    return Thing(
        thing.kind, name, str(pick(rng, palette)), thing.size, thing.cell, thing.x, thing.y,
        thing.extent,
    )  # fmt: skip


def _aligned(rng: np.random.Generator, thing: Thing, height: int, width: int) -> Thing:
    """Align two edges of some squares with patches, as in handmade images.

    Then no patch shows a corner, and a part of a square looks like the bar of a cross.
    """
    if thing.name != "square" or rng.random() < 0.6:
        return thing
    side, centre = (height, thing.y) if rng.random() < 0.5 else (width, thing.x)
    scale = SQUARE * min(height, width) / side  # of the image's side, for an extent of one
    patches = max(1, round(thing.extent * scale * GRID))
    extent = patches / GRID / scale
    first = round((centre - extent * scale / 2) * GRID)
    moved = (first + patches / 2) / GRID
    x, y = (thing.x, moved) if centre == thing.y else (moved, thing.y)
    is_same_size = abs(extent / thing.extent - 1) < 0.4 and (extent > 0.25) == (
        thing.size == "large"
    )
    is_inside = first >= 0 and first + patches <= GRID
    if not is_same_size or not is_inside or 3 * int(y * 3) + int(x * 3) != thing.cell:
        return thing
    return replace(thing, x=x, y=y, extent=extent)


def _glyph(rng: np.random.Generator, kind: Literal["shape", "digit"], cell: int, n: int) -> Thing:
    name = str(pick(rng, DIGITS)) if kind == "digit" else SHAPES[0]
    size = SIZES[int(rng.integers(2))]
    if size == "small":
        extent = float(rng.uniform(0.125, 0.165) if kind == "shape" else rng.uniform(0.15, 0.18))
    else:
        extent = float(rng.uniform(0.25, (0.8, 0.5, 0.36, 0.32)[min(n, 4) - 1]))
    row, column = divmod(cell, 3)
    low = extent / 2 + 0.01
    x = float(np.clip((column + rng.uniform(0.16, 0.84)) / 3, low, 1 - low))
    y = float(np.clip((row + rng.uniform(0.16, 0.84)) / 3, low, 1 - low))
    if (int(y * 3), int(x * 3)) != (row, column):
        return _glyph(rng, kind, cell, n)
    return Thing(kind, name, "", size, cell, x, y, extent)


def _word(rng: np.random.Generator, row: int, aspect: float) -> Thing:
    length = int(rng.choice([2, 3, 4, 5, 6], p=[0.12, 0.33, 0.33, 0.2, 0.02]))
    name = sample_word(rng, length)
    widest = 0.92 / (0.74 * length) * max(aspect, 1.0)  # a letter is about 0.74 as wide as high
    extent = float(rng.uniform(0.16, max(0.17, min(widest, 0.26))))
    extent = min(extent, widest)
    y = (row + float(rng.uniform(0.35, 0.65))) / 3
    half = min(0.49, 0.74 * length * extent / max(aspect, 1.0) / 2)
    slack = max(0.0, min(0.5 - half, 0.12))
    return Thing("word", name, "", "large", 3 * row + 1, 0.5 + float(rng.uniform(-slack, slack)),
                 y, extent)  # fmt: skip


def sample_word(rng: np.random.Generator, length: int) -> str:
    """Make a word of capital letters: sometimes pronounceable, sometimes random."""
    if rng.random() < 0.2:
        return "".join(LETTERS[i] for i in rng.integers(26, size=length))
    soft, hard = "AEIOUY", "BCDFGHJKLMNPQRSTVWXZ"
    start = int(rng.integers(2))
    return "".join(str(pick(rng, soft if (i + start) % 2 else hard)) for i in range(length))


def _source_size(rng: np.random.Generator) -> tuple[int, int]:
    side = int(pick(rng, (112, 128, 160, 200, 224, 256, 300, 336, 400)))
    if rng.random() < 0.55:
        return side, side
    other = int(side * rng.uniform(1.0, 1.8))
    return (side, other) if rng.random() < 0.7 else (other, side)


def _overlap(things: list[Thing], height: int, width: int) -> bool:
    short = min(height, width)
    boxes = []
    for t in things:
        half = t.extent / 2 * 1.06
        across = 0.5 if t.kind == "word" else half * short / width
        boxes.append((t.x - across, t.y - half * short / height, t.x + across,
                      t.y + half * short / height))  # fmt: skip
    return any(
        a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
        for i, a in enumerate(boxes)
        for b in boxes[:i]
    )


def distance(a: Colour, b: Colour) -> float:
    """Return the sum of the absolute differences of two colours."""
    return float(sum(abs(x - y) for x, y in zip(a, b, strict=True)))


def pick(rng: np.random.Generator, items: Sequence[T]) -> T:
    """Choose one item."""
    return items[int(rng.integers(len(items)))]
