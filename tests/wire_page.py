"""Writes the generated part of ``docs/reference/wire.md``: limits, types and errors.

``nox -s reference`` renews it; a test fails when it is out of date.
"""

from pathlib import Path
from typing import Any

from vlmkit.wire.conversions import describe
from vlmkit.wire.failures import ERRORS
from vlmkit.wire.frames import DEFAULT_LIMITS, MAGIC, PROTOCOL_VERSION
from vlmkit.wire.json_values import MAX_DEPTH
from vlmkit.wire.type_names import TYPES

PATH = Path(__file__).parents[1] / "docs/reference/wire.md"
BEGIN = "<!-- types -->"
OWN = {
    "array": ("a NumPy array, or one that DLPack reads", "buffer, dtype, shape"),
    "image": ("`Image`", "source size, upright size, turned, cost, file, pixels"),
    "error": (
        "an error of `vlmkit.errors`",
        "class, message, hint, param, code, distribution, index, keyword, retry after, others",
    ),
}


def page() -> str:
    """Return the page with its generated part renewed."""
    head = PATH.read_text().partition(BEGIN)[0]
    limits = {
        "magic": f"`{MAGIC.decode()}`",
        "protocol version": PROTOCOL_VERSION,
        "length of a head, at most": f"{DEFAULT_LIMITS.max_head_bytes >> 20} MiB",
        "number of buffers, at most": DEFAULT_LIMITS.max_buffers,
        "length of all buffers, at most": f"{DEFAULT_LIMITS.max_buffer_bytes >> 30} GiB",
        "depth of a JSON value, at most": MAX_DEPTH,
    }
    numbers = "".join(f"| {name} | {value} |\n" for name, value in limits.items())
    rows = "".join(_row(name, kind) for name, kind in TYPES.items())
    own = "".join(f"| `{name}` | {kind} | {fields} |\n" for name, (kind, fields) in OWN.items())
    return (
        f"{head}{BEGIN}\n\n## Constants\n\n| | |\n|---|---|\n{numbers}\n"
        f"## Types\n\n| name | type | fields |\n|---|---|---|\n{rows}{own}\n"
        f"## Errors\n\n{', '.join(f'`{name}`' for name in ERRORS)}.\n"
    )


def _row(name: str, kind: type[Any]) -> str:
    fields = ", ".join(f"`{each}`" for each in describe(name, kind).fields) or "none"
    return f"| `{name}` | `{kind.__name__}` | {fields} |\n"


if __name__ == "__main__":
    PATH.write_text(page())
