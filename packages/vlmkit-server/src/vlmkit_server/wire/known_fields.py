"""What is done about keys of a body that it does not declare: the table of fields says it."""

import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import msgspec

from vlmkit.errors import RequestError
from vlmkit_server.wire.ignored import UNKNOWN, shown_names
from vlmkit_server.wire.row import About, Row, says_nothing
from vlmkit_server.wire.table import TABLE
from vlmkit_server.wire.unused import UnusedKey

ANSWERS = frozenset[About]({"answer", "prompt"})
"""What the bodies of routes that answer are about."""

_INDEX = re.compile(r"\[\d+\]")
_SIGNS = re.compile("[_.-]")
_MIN_CHARS = 8  # shorter names are near to too much
_MAX_CHARS = 64
_MAX_CHECKED = 64  # keys of one body


def rejection(place: str, row: Row | None, kind: str) -> RequestError:
    """Return the error of a field that a body may not have with this value."""
    neutral = row.neutral if row else ()
    accepted = ", ".join(msgspec.json.encode(each).decode() for each in (None, *neutral))
    return RequestError(
        f"{place} is not supported by this server: got {kind}, accepted: {accepted}",
        param=place,
        code="unsupported_parameter",
        hint=_hint(row),
    )


def _hint(row: Row | None) -> str:
    if row is None:
        return ""
    return row.reason or (f"send {' or '.join(row.targets)}" if row.targets else "")


class KnownFields:
    """The table as it applies to one shape of body.

    Args:
        own: names of the fields that the body declares and takes.
        about: what the body has that fields can change.
        inner: where the body holds the fields that others have at the top, with a dot, or empty.

    Attributes:
        aliases: other names of the body's fields.
    """

    def __init__(self, own: Collection[str], about: frozenset[About], inner: str = "") -> None:
        self._about = about
        self._inner = inner
        self.aliases: Mapping[str, str] = MappingProxyType(
            {
                row.field: target
                for row in TABLE.values()
                if row.action == "alias" and row.field not in own and not inner
                for target in [next((each for each in row.targets if each in own), None)]
                if target is not None
            }
        )
        self._near = _neighbours([*own, *self.aliases])

    def row(self, place: str) -> Row | None:
        """Return the row of a place, which may have indices of lists, if it is known."""
        return TABLE.get(_INDEX.sub("", place).removeprefix(self._inner))

    def is_rejected(self, row: Row) -> bool:
        """Tell whether the body rejects a field that it does not declare."""
        action = row.elsewhere if row.action == "implemented" else row.action
        return action != "no effect" and row.about in self._about and row.field not in self.aliases

    def ignored(self, keys: Iterable[UnusedKey]) -> frozenset[str]:
        """Return the names of keys that say something and change nothing, as reports show them.

        Raises:
            RequestError: a key would change the answer, or is a misspelt name of one that would.
        """
        idle: dict[str, None] = {}
        num_unknown = 0
        for key in keys:
            if key.place in idle or says_nothing(value := key.value()):
                continue
            row = self.row(key.place)
            if row is None:
                num_unknown += 1
                if num_unknown <= _MAX_CHECKED:
                    self._check_spelling(key.place)
            elif row.is_neutral(value):
                continue
            elif self.is_rejected(row):
                raise rejection(key.place, row, key.kind)
            idle[key.place] = None
        return shown_names(idle)

    def _check_spelling(self, place: str) -> None:
        name = place.removeprefix(self._inner)
        if "." in name or len(name) > _MAX_CHARS:
            return
        plain = _SIGNS.sub("", name).lower()
        found = (self._near.get(each) for each in (plain, *_shorter(plain)))
        if (near := next(filter(None, found), None)) is not None:
            raise RequestError(
                f"{place} is not known to this server",
                param=place,
                code=UNKNOWN,
                hint=f"did you mean {near}?",
            )


def _neighbours(names: Iterable[str]) -> dict[str, str]:
    """Return what names look like without signs and capitals, and without any one letter."""
    found: dict[str, str] = {}
    for name in names:
        plain = _SIGNS.sub("", name).lower()
        for each in (plain, *_shorter(plain)):
            found.setdefault(each, name)
    return found


def _shorter(plain: str) -> list[str]:
    if len(plain) < _MIN_CHARS:
        return []
    return [plain[:n] + plain[n + 1 :] for n in range(len(plain))]


def without_neutral(body: bytes, names: Collection[str]) -> bytes | None:
    """Return a body without those of some fields whose values change nothing; None if all do.

    Raises:
        ValueError: the body is no JSON object.
    """
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    kept = {
        name: content
        for name, content in fields.items()
        if name not in names
        or (row := TABLE.get(name)) is None
        or not row.is_neutral(UnusedKey.of(name, content).value())
    }
    return msgspec.json.encode(kept) if len(kept) < len(fields) else None
