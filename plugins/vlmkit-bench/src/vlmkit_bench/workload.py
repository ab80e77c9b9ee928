"""What a load test requests: texts, images, conversations, and when they arrive.

Everything is a function of a seed and of the request's number, so two servers get the same load. It
sends nothing.
"""

import base64
import io
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from vlmkit.errors import RequestError

MAX_WORDS = 2_000_000
MAX_SIDE = 16_384
MAX_IMAGES = 64
MAX_TURNS = 1_000
MAX_TRACE_BYTES = 2**28
BLOCK = 16  # pixels of one colour: files of images are as long as those of photos
JPEG_QUALITY = 85
_TEXT = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work number night point home water
room mother area money story fact month lot right study book eye job word business issue side kind
head house service friend father power hour game line end member law car city name team minute idea
body back parent face level office door health person art war"""
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class Range:
    """Whole numbers from ``low`` to ``high``, both included."""

    low: int
    high: int

    @classmethod
    def parsed(cls, text: str, most: int) -> "Range":
        """Return the range that a text such as ``100`` or ``50..200`` states.

        Raises:
            RequestError: it is no range, or over ``most``.
        """
        found = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not low <= high <= most:
            raise RequestError(f"{text!r} is no number or range such as 50..200 up to {most}")
        return cls(low, high)

    def pick(self, chance: random.Random) -> int:
        """Return one of the numbers."""
        return chance.randint(self.low, self.high)


@dataclass(frozen=True)
class Sizes:
    """Sizes of images, between two of them."""

    widths: Range
    heights: Range

    @classmethod
    def parsed(cls, text: str) -> "Sizes":
        """Return the sizes that a text such as ``640x480`` or ``320x240..1280x960`` states.

        Raises:
            RequestError: it states no sizes.
        """
        found = re.fullmatch(r"(\d{1,5})x(\d{1,5})(?:\.\.(\d{1,5})x(\d{1,5}))?", text)
        if not found:
            raise RequestError(f"{text!r} is no size such as 640x480 or 320x240..1280x960")
        width, height, most_width, most_height = found.groups()
        return cls(
            Range.parsed(f"{width}..{most_width or width}", MAX_SIDE),
            Range.parsed(f"{height}..{most_height or height}", MAX_SIDE),
        )

    def __str__(self) -> str:
        low = f"{self.widths.low}x{self.heights.low}"
        return f"{low}..{self.widths.high}x{self.heights.high}"

    def pick(self, chance: random.Random) -> tuple[int, int]:
        """Return one of the sizes."""
        return self.widths.pick(chance), self.heights.pick(chance)


class Arrival(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One conversation of a trace; each line of a trace file is one, as a JSON object.

    Attributes:
        prompt_words: the words of its first message.
        answer_tokens: the largest number of tokens of each answer.
        at_s: when it arrives after the start, in seconds; None in a closed loop.
        images: the sizes of its images.
        turns: its requests, one after the other.
    """

    prompt_words: int = 100
    answer_tokens: int = 64
    at_s: float | None = None
    images: tuple[str, ...] = ()
    turns: int = 1


@dataclass(frozen=True)
class Conversation:
    """One conversation: its first message, and how it goes on.

    Attributes:
        number: its number, from 0.
        prompt_words: the words of its first message.
        answer_tokens: the largest number of tokens of each answer.
        images: the sizes of its images.
        turns: its requests, one after the other.
        at_s: when it arrives after the start; None in a closed loop.
    """

    number: int
    prompt_words: int
    answer_tokens: int
    images: tuple[tuple[int, int], ...]
    turns: int
    at_s: float | None


@dataclass(frozen=True)
class Shape:
    """How conversations are made.

    Attributes:
        prompt_words: the words of a first message.
        answer_tokens: the largest number of tokens of an answer.
        sizes: the size of each image of a conversation.
        turns: the requests of a conversation.
        shared_words: the first words, which all conversations share.
        num_repeated: the number of different images of the test; 0 means that none is repeated.
        rate: conversations per second, in a Poisson process; None in a closed loop.
        seed: decides everything.
    """

    prompt_words: Range
    answer_tokens: Range
    sizes: tuple[Sizes, ...] = ()
    turns: int = 1
    shared_words: int = 0
    num_repeated: int = 0
    rate: float | None = None
    seed: int = 0

    def conversations(self) -> Iterator[Conversation]:
        """Yield conversations without end, in the order of their arrival."""
        arrivals, at_s, number = random.Random(f"{self.seed} arrivals"), 0.0, 0
        while True:
            if self.rate is not None:
                at_s += arrivals.expovariate(self.rate)
            chance = random.Random(f"{self.seed} conversation {number}")
            yield Conversation(
                number=number,
                prompt_words=self.prompt_words.pick(chance),
                answer_tokens=self.answer_tokens.pick(chance),
                images=tuple(sizes.pick(chance) for sizes in self.sizes),
                turns=self.turns,
                at_s=None if self.rate is None else at_s,
            )
            number += 1

    def first_message(self, conversation: Conversation) -> dict[str, Any]:
        """Return the first message of a conversation, with its images."""
        shared = random.Random(f"{self.seed} shared")
        own = random.Random(f"{self.seed} words {conversation.number}")
        num_shared = min(self.shared_words, conversation.prompt_words)
        words = shared.choices(WORDS, k=num_shared)
        words += own.choices(WORDS, k=conversation.prompt_words - num_shared)
        text = " ".join(words)
        if not conversation.images:
            return {"role": "user", "content": text}
        images = [
            {"type": "image_url", "image_url": {"url": self._image(conversation.number, *each)}}
            for each in enumerate(conversation.images)
        ]
        return {"role": "user", "content": [*images, {"type": "text", "text": text}]}

    def next_message(self, conversation: Conversation, turn: int) -> dict[str, Any]:
        """Return a later message of a conversation."""
        own = random.Random(f"{self.seed} words {conversation.number} {turn}")
        return {"role": "user", "content": " ".join(own.choices(WORDS, k=12))}

    def _image(self, number: int, index: int, size: tuple[int, int]) -> str:
        """Return the URL of an image; no two are equal unless images are repeated."""
        name = number * max(1, len(self.sizes)) + index
        if self.num_repeated:
            name %= self.num_repeated
            sizes = self.sizes[name % len(self.sizes)]
            size = sizes.pick(random.Random(f"{self.seed} size {name}"))
        return image_url(f"{self.seed} image {name}", size)


def image_url(seed: str, size: tuple[int, int]) -> str:
    """Return a ``data:`` URL of a JPEG file with coloured blocks, a function of its seed."""
    width, height = size
    chance = np.random.default_rng(list(seed.encode()))
    blocks = chance.integers(0, 256, (-(-height // BLOCK), -(-width // BLOCK), 3), np.uint8)
    image = Image.fromarray(blocks).resize(size, Image.Resampling.BILINEAR)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def read_trace(path: Path) -> Sequence[Conversation]:
    """Return the conversations of a trace file, in the order of their arrival.

    Raises:
        RequestError: the file cannot be read, or a line of it is wrong; the error names the line.
    """
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            raise RequestError(f"{path} is over {MAX_TRACE_BYTES // 2**20} MiB")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    found = [_arrival(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise RequestError(f"{path} has no line")
    if len({arrival.at_s is None for arrival, _ in found}) > 1:
        raise RequestError(f"{path}: at_s must be in all lines or in none")
    found.sort(key=lambda each: each[0].at_s or 0.0)
    return [
        Conversation(
            number, each.prompt_words, each.answer_tokens, images, each.turns, at_s=each.at_s
        )
        for number, (each, images) in enumerate(found)
    ]


def _arrival(line: bytes, where: str) -> tuple[Arrival, tuple[tuple[int, int], ...]]:
    try:
        arrival = msgspec.json.decode(line, type=Arrival)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{where}: {error}") from None
    bounds = {
        "prompt_words": (arrival.prompt_words, 0, MAX_WORDS),
        "answer_tokens": (arrival.answer_tokens, 1, MAX_WORDS),
        "turns": (arrival.turns, 1, MAX_TURNS),
        "at_s": (arrival.at_s or 0.0, 0.0, 1e9),
        "the number of images": (len(arrival.images), 0, MAX_IMAGES),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise RequestError(f"{where}: {name} must be from {least} to {most}")
    sizes = []
    for text in arrival.images:
        size = Sizes.parsed(text)
        if size.widths.low != size.widths.high or size.heights.low != size.heights.high:
            raise RequestError(f"{where}: the size of an image must not be a range")
        sizes.append((size.widths.low, size.heights.low))
    return arrival, tuple(sizes)
