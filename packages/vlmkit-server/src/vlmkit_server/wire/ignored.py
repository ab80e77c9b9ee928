"""How a client and the operator are told which keys of a body had no effect.

Both reports are bounded, and neither shows text that is more than a name.
"""

import re
from collections.abc import Iterable

from vlmkit.errors import RequestError
from vlmkit_server.wire.table import TABLE

HEADER = "x-vlmkit-ignored"
STRICT_HEADER = "x-vlmkit-strict"
MAX_NAMES = 16
OTHER = "other"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
UNKNOWN = "unknown_parameter"


def shown_names(places: Iterable[str]) -> frozenset[str]:
    """Return the places that a report shows; those beyond its bounds are ``other``."""
    names: set[str] = set()
    for place in places:
        names.add(place if len(names) < MAX_NAMES and _NAME.fullmatch(place) else OTHER)
    return frozenset(names)


def unknown(names: Iterable[str]) -> RequestError:
    """Return the refusal of keys that might be ignored, where nothing may be."""
    first = min(names)
    if first == OTHER:
        return RequestError("the body has a key that this server does not know", code=UNKNOWN)
    return RequestError(f"{first} is not known to this server", param=first, code=UNKNOWN)


def header_value(names: Iterable[str]) -> str:
    """Return names as the value of a header."""
    return ", ".join(sorted(names))


def counter_names(names: Iterable[str]) -> frozenset[str]:
    """Return what to count names as, of which there are few, whatever clients send."""
    return frozenset(name if name in TABLE else OTHER for name in names)
