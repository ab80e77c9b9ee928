"""Draw the packaged sample images, which are held-out scenes.

python training/sample.py
"""

from pathlib import Path

import numpy as np
from picture import draw
from scene import Scene, Thing

PICTURES = Path(__file__).parent.parent / "src" / "vlmkit_demo" / "pictures"
WHITE = (255, 255, 255)
SAMPLES = {
    "shapes.png": Scene(
        (
            Thing("shape", "circle", "blue", "large", 3, 0.2, 0.5, 0.3),
            Thing("shape", "square", "red", "small", 5, 0.82, 0.5, 0.15),
        ),
        WHITE, 336, 336,
    ),
    "word.jpg": Scene(
        (
            Thing("word", "MUSIC", "green", "large", 1, 0.5, 0.18, 0.2),
            Thing("shape", "star", "purple", "large", 7, 0.5, 0.72, 0.34),
        ),
        (250, 245, 225), 300, 400,
    ),
    "digit.png": Scene(
        (Thing("digit", "7", "blue", "large", 4, 0.5, 0.5, 0.5),), (225, 225, 225), 224, 224
    ),
}  # fmt: skip


def main() -> None:
    """Draw and save the images."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, scene in SAMPLES.items():
        draw(scene, np.random.default_rng(0)).image.save(PICTURES / name)


if __name__ == "__main__":
    main()
