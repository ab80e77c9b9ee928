"""Keys and values of pictures, one set for each, whoever looks at it.

They are computed once and never change. Sequences of one scope share a picture by its content;
nobody's pictures stay until their room is needed, the one that was left first goes first. A cached
prefix that goes past a picture is of use only while the picture is there: see :meth:`usable`.
Counts rows; what is computed with them is not known here.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.view import SequenceView
from vlmkit_torch.cross_attention.family import Sight

Key: TypeAlias = tuple[bytes, bytes]
"""A scope, and the digest of a picture."""


@dataclass(slots=True, eq=False)
class Picture:
    """What a decoder's layers keep of one picture.

    Attributes:
        num_rows: of its keys and values.
        layers: keys and values ``[kv_heads, rows, head]`` by layer.
        is_whole: whether all layers have theirs.
        num_users: admitted sequences that look at it.
    """

    num_rows: int
    layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    is_whole: bool = False
    num_users: int = 0

    @property
    def num_bytes(self) -> int:
        """Memory that its keys and values take."""
        arrays = (array for pair in self.layers.values() for array in pair)
        return sum(array.numel() * array.element_size() for array in arrays)


class PictureCache:
    """Keeps up to ``max_rows`` rows of pictures.

    Args:
        max_rows: rows in all, those of pictures that are yet to be computed included.
        keeps_unused: whether pictures stay that nobody looks at.
    """

    def __init__(self, max_rows: int, *, keeps_unused: bool) -> None:
        self.max_rows = max_rows
        self._keeps_unused = keeps_unused
        self._pictures: dict[Key, Picture] = {}
        self._unused: OrderedDict[Key, None] = OrderedDict()
        self._held: dict[SequenceView, dict[int, Key]] = {}

    @property
    def num_users(self) -> int:
        """Admitted sequences that look at pictures."""
        return len(self._held)

    @property
    def num_rows(self) -> int:
        """Rows of all pictures that are there, or are to be computed."""
        return sum(picture.num_rows for picture in self._pictures.values())

    @property
    def num_used_rows(self) -> int:
        """Rows of those that somebody looks at."""
        return sum(p.num_rows for p in self._pictures.values() if p.num_users)

    def refuse_too_many(self, prompt: Prompt, sights: tuple[Sight, ...]) -> None:
        """Refuse a prompt whose pictures cannot all be there at once.

        Raises:
            RequestError: they have too many rows.
        """
        num_rows = sum(_num_rows(prompt, sights).values())
        if num_rows > self.max_rows:
            raise RequestError(
                f"the prompt's pictures have {num_rows} rows to look at, and this engine keeps "
                f"{self.max_rows} at most",
                hint="show fewer or smaller pictures, or raise engine.cache_gib",
            )

    def usable(self, sequence: SequenceView, num_cached: int) -> int:
        """Return how many of a sequence's cached tokens need not be computed again.

        Who comes after them may look at a picture that is not there any more. It is computed when
        its own token is, so that one must not count as cached.
        """
        for index, sight in reversed(list(enumerate(_sights(sequence)))):
            if sight.start < num_cached < sight.stop and not self._is_there(sequence, index):
                num_cached = sight.start
        return num_cached

    def admit(self, sequence: SequenceView, num_cached: int) -> bool:
        """Make room for all pictures that tokens after the cached ones look at; False if full."""
        keys = {
            index: _key(sequence, index)
            for index, sight in enumerate(_sights(sequence))
            if sight.stop > num_cached
        }
        if not keys:
            return True
        rows = _num_rows(sequence.prompt, _sights(sequence))
        new = {key: rows[key[1]] for key in keys.values() if key not in self._pictures}
        if not self._make_room(sum(new.values()), keeping=set(keys.values())):
            return False
        self._pictures |= {key: Picture(num_rows) for key, num_rows in new.items()}
        for key in set(keys.values()):
            self._pictures[key].num_users += 1
            self._unused.pop(key, None)
        self._held[sequence] = keys
        return True

    def of(self, sequence: SequenceView, index: int) -> Picture:
        """Return a picture that an admitted sequence looks at."""
        return self._pictures[self._held[sequence][index]]

    def release(self, sequence: SequenceView, *, is_sound: bool = True) -> None:
        """Let a sequence go.

        Args:
            sequence: that was admitted.
            is_sound: whether its values were finite; else none of its pictures stays unused.
        """
        for key in set(self._held.pop(sequence, {}).values()):
            picture = self._pictures[key]
            picture.num_users -= 1
            if not picture.num_users:
                if self._keeps_unused and picture.is_whole and is_sound:
                    self._unused[key] = None
                else:
                    del self._pictures[key]

    def free(self) -> None:
        """Give all memory back."""
        self._pictures.clear()
        self._unused.clear()
        self._held.clear()

    def _is_there(self, sequence: SequenceView, index: int) -> bool:
        picture = self._pictures.get(_key(sequence, index))
        return picture is not None and picture.is_whole

    def _make_room(self, num_rows: int, keeping: set[Key]) -> bool:
        """Let unused pictures go until there is room for some rows; False, and all stay, if not."""
        num_over = self.num_rows + num_rows - self.max_rows
        leaving = []
        for key in self._unused:
            if num_over <= 0:
                break
            if key not in keeping:
                leaving.append(key)
                num_over -= self._pictures[key].num_rows
        if num_over > 0:
            return False
        for key in leaving:
            del self._pictures[key], self._unused[key]
        return True


def _sights(sequence: SequenceView) -> tuple[Sight, ...]:
    sights: tuple[Sight, ...] = sequence.plan.state.sights
    return sights


def _key(sequence: SequenceView, index: int) -> Key:
    return sequence.scope, sequence.prompt.media[index].digest


def _num_rows(prompt: Prompt, sights: tuple[Sight, ...]) -> dict[bytes, int]:
    """Return the rows of a prompt's pictures, each content once."""
    return {s.digest: sight.num_rows for s, sight in zip(prompt.media, sights, strict=True)}
