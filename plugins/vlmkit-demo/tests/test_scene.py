"""The generator draws the scenes that it describes."""

import numpy as np
import pytest

pytest.importorskip("numpy")
pytest.importorskip("PIL")

from picture import GRID, SIDE, draw, ink_of_patches, label_patches, to_pixels
from scene import COLOURS, PLACES, SHAPES, sample_scene


def test_training_scenes_hold_no_held_out_combination() -> None:
    rng = np.random.default_rng(1)
    scenes = [sample_scene(rng, "train") for _ in range(300)]
    assert not any(thing.held_out() for scene in scenes for thing in scene.things)


def test_every_held_out_scene_has_a_held_out_combination() -> None:
    rng = np.random.default_rng(2)
    scenes = [sample_scene(rng, "held_out") for _ in range(100)]
    assert all(any(thing.held_out() for thing in scene.things) for scene in scenes)


def test_the_same_seed_draws_the_same_image() -> None:
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    a, b = draw(sample_scene(one), one), draw(sample_scene(other), other)
    assert np.array_equal(to_pixels(a.image), to_pixels(b.image))


def test_objects_are_at_their_positions() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        for thing in sample_scene(rng).things:
            column = 1 if thing.kind == "word" else int(thing.x * 3)
            assert PLACES[int(thing.y * 3) * 3 + column] == thing.place


def test_a_large_shape_has_its_colour_in_its_middle() -> None:
    rng = np.random.default_rng(5)
    checked = 0
    while checked < 40:
        scene = sample_scene(rng, content="shapes")
        image = draw(scene, rng).image
        for thing in scene.shapes:
            if thing.size == "small":
                continue
            x, y = int(thing.x * scene.width), int(thing.y * scene.height)
            pixel = np.array(image.getpixel((x, y)), int)
            near = min(np.abs(pixel - shade).sum() for shade in COLOURS[thing.colour])
            assert near < 100, (thing, pixel)
            checked += 1


def test_labels_name_only_what_is_in_the_scene() -> None:
    rng = np.random.default_rng(6)
    scene = sample_scene(rng, content="shapes")
    drawing = draw(scene, rng)
    labels = label_patches(drawing.marks)
    named = {SHAPES[i - 1] for i in labels.name if i}
    assert named == {thing.name for thing in scene.shapes}
    assert ink_of_patches(drawing.ink).shape == (GRID**2, 49)
    assert to_pixels(drawing.image).shape == (SIDE, SIDE, 3)
