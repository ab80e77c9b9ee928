"""Reports to the client and the operator which fields of a body had no effect.

Both reports are bounded, and contain names of fields alone.
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


def shown_names(paths: Iterable[str]) -> frozenset[str]:
    """Return the paths that a report shows; those beyond its limits are ``other``."""
    names: set[str] = set()
    for path in paths:
        names.add(path if len(names) < MAX_NAMES and _NAME.fullmatch(path) else OTHER)
    return frozenset(names)


def unknown(names: Iterable[str]) -> RequestError:
    """Return the refusal of fields that would be ignored, where that is not allowed."""
    first = min(names)
    if first == OTHER:
        return RequestError("the body has a key that this server does not know", code=UNKNOWN)
    return RequestError(f"{first} is not known to this server", param=first, code=UNKNOWN)


def header_value(names: Iterable[str]) -> str:
    """Return names as a header value."""
    return ", ".join(sorted(names))


def counter_names(names: Iterable[str]) -> frozenset[str]:
    """Return the counters of some names: a fixed set, whatever clients send."""
    return frozenset(name if name in TABLE else OTHER for name in names)
