"""Images of scenes, and labels of their patches.

It draws scenes with Pillow, resizes images for the vision tower, and labels their patches. It does
not choose the content of a scene.
"""

import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scene import (
    COLOURS,
    GRID,
    LONGEST_WORD,
    NAMES,
    PLACES,
    SIZES,
    SQUARE,
    TOO_CLOSE,
    Colour,
    Scene,
    Thing,
    distance,
    pick,
)  # fmt: skip

Pens = tuple[ImageDraw.ImageDraw, ImageDraw.ImageDraw]  # for the image and for the ink
SIDE = 112  # pixels along a side of the vision tower's input
INK = 7  # parts of a patch along a side with a value of ink


class Mark(NamedTuple):
    """A labelled box of an image: ``box`` is left, top, right, bottom as fractions."""

    box: tuple[float, float, float, float]
    thing: Thing
    name: str
    letter: int  # which letter of its word it is, else 0


class Drawing(NamedTuple):
    """A drawn scene: the RGB image, its marks, and the ink (an ``L`` image)."""

    image: Image.Image
    marks: list[Mark]
    ink: Image.Image


def draw(scene: Scene, rng: np.random.Generator) -> Drawing:
    """Draw a scene at its source size.

    Args:
        scene: what to draw.
        rng: chooses shades, rotation, anti-aliasing, noise and JPEG quality.

    Returns:
        The drawing, with one mark for each shape, digit and letter.
    """
    factor = 2 if rng.random() < 0.7 else 1
    height, width = scene.height * factor, scene.width * factor
    image = Image.new("RGB", (width, height), scene.background)
    ink = Image.new("L", (width, height))
    pens = ImageDraw.Draw(image), ImageDraw.Draw(ink)
    marks: list[Mark] = []
    outline = rng.random() < 0.1
    for thing in scene.things:
        shade = _shade(rng, thing.colour, scene.background)
        if thing.kind == "shape":
            marks.append(_draw_shape(pens, thing, shade, outline, (height, width), rng))
        else:
            marks += _draw_text(pens, thing, shade, (height, width), rng)
    if factor > 1:
        image = image.resize((scene.width, scene.height), Image.Resampling.BOX)
    return Drawing(_weather(image, rng), marks, ink)


def _shade(rng: np.random.Generator, colour: str, background: Colour) -> Colour:
    shades = [s for s in COLOURS[colour] if distance(s, background) > TOO_CLOSE]
    base = COLOURS[colour][0] if rng.random() < 0.35 or not shades else pick(rng, shades)
    shifted = np.clip(np.array(base) + rng.integers(-10, 11, 3), 0, 255)
    return int(shifted[0]), int(shifted[1]), int(shifted[2])


def _draw_shape(
    pens: Pens, thing: Thing, shade: Colour, outline: bool,
    size: tuple[int, int], rng: np.random.Generator,
) -> Mark:  # fmt: skip
    height, width = size
    radius = thing.extent * min(size) / 2
    x, y = thing.x * width, thing.y * height
    edge = (90, 90, 90) if outline else None
    if thing.name == "circle":
        box = (x - radius, y - radius, x + radius, y + radius)
        pens[0].ellipse(box, shade, edge)
        pens[1].ellipse(box, 255)
    else:
        angle = 0.0 if rng.random() < 0.6 else float(rng.uniform(-0.15, 0.15))
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points = outline_of(thing.name) @ turn.T * radius + (x, y)
        corners = [(float(px), float(py)) for px, py in points]
        pens[0].polygon(corners, shade, edge)
        pens[1].polygon(corners, 255)
    across, down = radius / width, radius / height
    place = (thing.x - across, thing.y - down, thing.x + across, thing.y + down)
    return Mark(place, thing, thing.name, 0)


def outline_of(shape: str) -> NDArray[np.float64]:
    """Return a shape's corners ``[points, 2]`` (x, y down) within the unit circle or its square."""
    if shape == "square":
        return SQUARE * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)], float)
    if shape == "diamond":
        return np.array([(0, -1), (0.8, 0), (0, 1), (-0.8, 0)], float)
    if shape == "triangle":
        return np.array([(0, -1), (1, 0.85), (-1, 0.85)], float)
    if shape == "cross":
        a = 0.34
        return np.array([(-a, -1), (a, -1), (a, -a), (1, -a), (1, a), (a, a), (a, 1), (-a, 1),
                         (-a, a), (-1, a), (-1, -a), (-a, -a)], float)  # fmt: skip
    if shape == "star":
        turns = np.arange(10) * np.pi / 5
        reach = np.where(np.arange(10) % 2 == 0, 1.05, 0.42)
        return np.stack([np.sin(turns) * reach, -np.cos(turns) * reach], 1)
    t = np.linspace(0, 2 * np.pi, 40)
    x = 16 * np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) - 2
    return np.stack([x / 16.5, y / 15.5], 1)


def _draw_text(
    pens: Pens, thing: Thing, shade: Colour, size: tuple[int, int],
    rng: np.random.Generator,
) -> list[Mark]:  # fmt: skip
    height, width = size
    tall = thing.extent * min(size)
    font = ImageFont.load_default(size=max(6.0, tall / 0.72))  # capitals are 0.72 em high
    stroke = int(rng.integers(0, 3)) * tall / 60
    gap = 0.0 if thing.kind == "digit" else tall * float(rng.uniform(0.0, 0.12))
    advances = [font.getlength(c) + gap for c in thing.name]
    total = sum(advances) - gap
    if total > 0.97 * width:
        shrink = 0.97 * width / total
        advances = [a * shrink for a in advances]
        font = ImageFont.load_default(size=max(6.0, shrink * tall / 0.72))
        total, tall, gap, stroke = 0.97 * width, tall * shrink, gap * shrink, stroke * shrink
    left = min(max(thing.x * width - total / 2, 0.01 * width), 0.99 * width - total)
    y = thing.y * height
    marks = []
    for i, (letter, advance) in enumerate(zip(thing.name, advances, strict=True)):
        at = left, y + tall / 2
        pens[0].text(at, letter, shade, font, anchor="ls", stroke_width=stroke)
        pens[1].text(at, letter, 255, font, anchor="ls", stroke_width=stroke)
        box = (left / width, (y - tall / 2) / height, (left + advance - gap) / width,
               (y + tall / 2) / height)  # fmt: skip
        marks.append(Mark(box, thing, letter, i))
        left += advance
    return marks


def _weather(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    luck = rng.random()
    if luck < 0.12:
        pixels = np.asarray(image, np.int16)
        noise = rng.integers(-12, 13, (*pixels.shape[:2], 1), np.int16)
        return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))
    if luck < 0.4:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=int(rng.integers(55, 96)))
        return Image.open(buffer).convert("RGB")
    return image


def to_pixels(image: Image.Image) -> NDArray[np.uint8]:
    """Stretch an image like the image processor: ``[112, 112, 3]`` uint8."""
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def ink_of_patches(ink: Image.Image) -> NDArray[np.uint8]:
    """Return the ink in each of the 7 x 7 parts of each patch: ``[64, 49]``, 0 to 255."""
    fine = np.asarray(ink.resize((GRID * INK, GRID * INK), Image.Resampling.BOX))
    cut = fine.reshape(GRID, INK, GRID, INK).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(cut).reshape(GRID**2, INK**2)


class PatchLabels(NamedTuple):
    """The labels of each patch, each ``[64]`` int64 with 0 for background."""

    name: NDArray[np.int64]
    colour: NDArray[np.int64]
    size: NDArray[np.int64]
    cell: NDArray[np.int64]
    letter: NDArray[np.int64]


LABEL_SIZES = {
    "name": len(NAMES) + 1, "colour": len(COLOURS) + 1, "size": len(SIZES) + 1,
    "cell": len(PLACES) + 1, "letter": LONGEST_WORD + 1,
}  # fmt: skip


def label_patches(marks: list[Mark]) -> PatchLabels:
    """Return for each patch the thing that covers most of it."""
    edges = np.arange(GRID + 1) / GRID
    best = np.full((GRID, GRID), 0.0)
    owner = np.full((GRID, GRID), -1)
    for i, mark in enumerate(marks):
        left, top, right, bottom = mark.box
        across = np.clip(np.minimum(edges[1:], right) - np.maximum(edges[:-1], left), 0, None)
        down = np.clip(np.minimum(edges[1:], bottom) - np.maximum(edges[:-1], top), 0, None)
        cover = np.outer(down, across) * GRID * GRID
        wins = (cover > best) & (cover >= min(0.3, cover.max()))
        owner[wins], best[wins] = i, cover[wins]
    colours = list(COLOURS)
    rows = [(0, 0, 0, 0, 0)] + [
        (NAMES.index(m.name) + 1, colours.index(m.thing.colour) + 1,
         SIZES.index(m.thing.size) + 1, m.thing.cell + 1, m.letter + 1)
        for m in marks
    ]  # fmt: skip
    table = np.array(rows, np.int64)[owner.reshape(-1) + 1]
    return PatchLabels(*(np.ascontiguousarray(table[:, k]) for k in range(5)))
