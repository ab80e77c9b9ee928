"""Handles the fields of a body that its struct does not declare, by the field table."""

import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import msgspec

from vlmkit.errors import RequestError
from vlmkit_server.wire.ignored import UNKNOWN, shown_names
from vlmkit_server.wire.row import About, Row, is_empty
from vlmkit_server.wire.table import TABLE
from vlmkit_server.wire.unused import UnusedKey

ANSWERS = frozenset[About]({"answer", "prompt"})
"""What fields can change in the bodies of routes that answer."""

_INDEX = re.compile(r"\[\d+\]")
_SIGNS = re.compile("[_.-]")
_MIN_CHARS = 8  # shorter names resemble too many others
_MAX_CHARS = 64
_MAX_CHECKED = 64  # keys of one body


def rejection(path: str, row: Row | None, kind: str) -> RequestError:
    """Return the error of a field that a body must not have with this value."""
    neutral = row.neutral if row else ()
    accepted = ", ".join(msgspec.json.encode(each).decode() for each in (None, *neutral))
    return RequestError(
        f"{path} is not supported by this server: got {kind}, accepted: {accepted}",
        param=path,
        code="unsupported_parameter",
        hint=_hint(row),
    )


def _hint(row: Row | None) -> str:
    if row is None:
        return ""
    return row.reason or (f"send {' or '.join(row.targets)}" if row.targets else "")


class KnownFields:
    """The field table as it applies to one shape of body.

    Args:
        own: names of the fields that the body declares and accepts.
        about: what the body has that fields can change.
        inner: the prefix of the object with the fields that others have at the top, with a dot;
            or empty.

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

    def row(self, path: str) -> Row | None:
        """Return the row of a path, which may have list indices, if there is one."""
        return TABLE.get(_INDEX.sub("", path).removeprefix(self._inner))

    def is_rejected(self, row: Row) -> bool:
        """Tell whether the body rejects a field that it does not declare."""
        action = row.elsewhere if row.action == "implemented" else row.action
        return action != "no effect" and row.about in self._about and row.field not in self.aliases

    def ignored(self, keys: Iterable[UnusedKey]) -> frozenset[str]:
        """Return the names of set fields that change nothing, as reports show them.

        Raises:
            RequestError: a field would change the answer, or is a misspelt name of one that would.
        """
        idle: dict[str, None] = {}
        num_unknown = 0
        for key in keys:
            row, value = self.row(key.path), key.value()
            if key.path in idle or (row.is_neutral(value) if row else is_empty(value)):
                continue
            if row is None:
                num_unknown += 1
                if num_unknown <= _MAX_CHECKED:
                    self._check_spelling(key.path)
            elif self.is_rejected(row):
                raise rejection(key.path, row, key.kind)
            idle[key.path] = None
        return shown_names(idle)

    def _check_spelling(self, path: str) -> None:
        name = path.removeprefix(self._inner)
        if "." in name or len(name) > _MAX_CHARS:
            return
        plain = _SIGNS.sub("", name).lower()
        found = (self._near.get(each) for each in (plain, *_shorter(plain)))
        if (near := next(filter(None, found), None)) is not None:
            raise RequestError(
                f"{path} is not known to this server",
                param=path,
                code=UNKNOWN,
                hint=f"did you mean {near}?",
            )


def _neighbours(names: Iterable[str]) -> dict[str, str]:
    """Return names without punctuation and capitals, and with any one letter removed."""
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
    """Return a body without the neutral values of some fields; None if there are none.

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
