"""Batches for training: images, labels of their patches, and packed conversations.

A batch is a function of the seed and the step. Several conversations share one row. Each attends to
the images of the row and to itself, at the positions that it would have alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from picture import GRID, draw, ink_of_patches, label_patches, to_pixels
from question import ASKS, Dialogue, PhraseChooser, ask_pair, small_talk, system_prompt
from scene import Scene, sample_page, sample_scene
from tokenizer import ASSISTANT, END, IMAGE, PAD, SYSTEM, USER, load_tokenizer, special_ids

ROW = 288  # tokens of one packed row
PADDING = -1000  # the span of padding
PAIR_SHARE = 0.4  # rows with two images
WEIGHTS = {
    "describe": 0.5, "what_is_at": 0.8, "shape": 0.7, "colour": 0.5, "size": 0.3, "position": 0.8,
    "count": 1.2, "count_if": 3.0, "relation": 3.6, "exist": 1.0, "digit": 1.6, "word": 5.0,
    "follow_up": 0.9, "unknown": 0.7,
}  # fmt: skip
KINDS = tuple(WEIGHTS)
SHARES = np.array(list(WEIGHTS.values())) / sum(WEIGHTS.values())


@dataclass(frozen=True)
class Text:
    """Packed conversations, each ``[rows, seq]`` int64 but for ``slots``.

    ``targets`` is the next token if it belongs to an answer, else -100. ``spans`` numbers the
    conversations of a row (0: the shared images). ``slots`` ``[patches, 2]`` is the row and column
    of each patch, in the order of the images of the batch.
    """

    ids: NDArray[np.int64]
    targets: NDArray[np.int64]
    positions: NDArray[np.int64]
    spans: NDArray[np.int64]
    slots: NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Images with their labels, and optionally with text.

    ``pixels`` is ``[images, 112, 112, 3]`` uint8, ``labels`` ``[images, 5, 64]`` and ``ink``
    ``[images, 64, 49]`` uint8.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    ink: NDArray[np.uint8]
    text: Text | None = None


def vision_batch(seed: int, step: int, images: int, pages: float = 0.0) -> Batch:
    """Draw images for the vision tower alone; a share of them are pages of text."""
    rng = np.random.default_rng([seed, step])
    scenes = [
        sample_page(rng) if pages and rng.random() < pages else sample_scene(rng)
        for _ in range(images)
    ]
    return Batch(*_draw(scenes, rng))


def _draw(
    scenes: list[Scene], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8]]:
    drawings = [draw(scene, rng) for scene in scenes]
    return (
        np.stack([to_pixels(d.image) for d in drawings]),
        np.stack([np.stack(label_patches(d.marks)) for d in drawings]),
        np.stack([ink_of_patches(d.ink) for d in drawings]),
    )


def joint_batch(seed: int, step: int, rows: int) -> Batch:
    """Draw images and generate conversations about them."""
    rng = np.random.default_rng([seed, step])
    packer = Packer(rows, PhraseChooser(rng, "train"))
    scenes: list[Scene] = []
    for row in range(rows):
        pair = rng.random() < PAIR_SHARE
        mine = [sample_scene(rng, most=3 if pair else 5) for _ in range(2 if pair else 1)]
        packer.fill(row, mine)
        scenes += mine
    pages = [sample_page(rng) for _ in range(rows // 2)]  # no conversation is about them
    return Batch(*_draw(scenes + pages, rng), packer.text())


def talk(scenes: list[Scene], ask: PhraseChooser, first: str | None = None) -> Dialogue:
    """Generate one conversation about one or two scenes, sometimes about two in a row."""
    if len(scenes) == 2:
        turns = None
        while turns is None:
            turns = ask_pair((scenes[0], scenes[1]), ask)
        return Dialogue("two_images", turns, 2)
    kind, turns = first, ASKS[first](scenes[0], ask) if first else None
    while kind is None or turns is None:
        kind = KINDS[int(ask.rng.choice(len(KINDS), p=SHARES))]
        turns = ASKS[kind](scenes[0], ask)
    if ask.chance(0.04):
        turns = (*small_talk(ask, greet=True)[1], *turns)
    if ask.chance(0.2):
        turns += talk(scenes, ask).turns[:2]
    if ask.chance(0.04):
        turns += small_talk(ask, greet=True)[1]
    return Dialogue(kind, turns[:4], 1)


class Packer:
    """Packs conversations into rows of one length."""

    def __init__(self, rows: int, ask: PhraseChooser) -> None:
        self._ask = ask
        self._encode = _Encoder()
        shape = (rows, ROW)
        self._ids = np.full(shape, self._encode.special[PAD], np.int64)
        self._targets = np.full(shape, -100, np.int64)
        self._positions = np.zeros(shape, np.int64)
        self._spans = np.full(shape, PADDING, np.int64)
        self._slots: list[tuple[int, int]] = []

    def fill(self, row: int, scenes: list[Scene]) -> None:
        """Fill one row: images, conversations about them, one conversation without images."""
        special, ask = self._encode.special, self._ask
        prefix = []
        if ask.chance(0.15):
            prefix = [special[SYSTEM], *self._encode(system_prompt(ask)), special[END]]
        prefix += [special[USER], *[special[IMAGE]] * (GRID**2 * len(scenes))]
        self._slots += [(row, i) for i, t in enumerate(prefix) if t == special[IMAGE]]
        self._put(row, 0, prefix, [-100] * len(prefix), 0, 0)
        used, span = len(prefix), 1
        alone = Dialogue("", small_talk(ask)[1], 0)
        first: str | None = "describe"
        dialogue = alone
        while True:
            ids, targets = self.encode(dialogue)
            if used + len(ids) > ROW:
                return
            start = 0 if dialogue.pictures == 0 else len(prefix)
            self._put(row, used, ids, targets, start, span if dialogue.pictures else -span)
            used, span = used + len(ids), span + 1
            dialogue, first = talk(scenes, ask, first if len(scenes) == 1 else None), None

    def encode(self, dialogue: Dialogue) -> tuple[list[int], list[int]]:
        """Return a conversation's tokens after its images, and the targets."""
        special = self._encode.special
        ids: list[int] = []
        answers: list[bool] = []
        for i, turn in enumerate(dialogue.turns):
            head = [special[USER]] if i or not dialogue.pictures else []
            asked = [*head, *self._encode(turn.question), special[END], special[ASSISTANT]]
            answer = [*self._encode(turn.answer), special[END]]
            ids += asked + answer
            answers += [False] * len(asked) + [True] * len(answer)
        following = zip([*ids[1:], 0], [*answers[1:], False], strict=True)
        return ids, [token if answer else -100 for token, answer in following]

    def _put(
        self, row: int, at: int, ids: list[int], targets: list[int], start: int, span: int
    ) -> None:
        end = at + len(ids)
        self._ids[row, at:end] = ids
        self._targets[row, at:end] = targets
        self._positions[row, at:end] = np.arange(start, start + len(ids))
        self._spans[row, at:end] = span

    def text(self) -> Text:
        """Return the packed rows."""
        return Text(
            self._ids, self._targets, self._positions, self._spans, np.array(self._slots, np.int64)
        )


class _Encoder:
    """Encodes text, with a cache."""

    def __init__(self) -> None:
        self._tokenizer = load_tokenizer()
        self.special = special_ids(self._tokenizer)
        self._known: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text).ids
        return self._known[text]
