"""The field table: the fields that clients are known to send, and how each is handled.

It drives what bodies reject, accept under another name or report, the list in ``/v1/capabilities``
and the page ``docs/reference/fields.md``. The defaults of the servers that have a field are its
neutral values: some clients send all of them with every request.
"""

from collections.abc import Iterable
from types import MappingProxyType

from vlmkit_server.wire.row import Row
from vlmkit_server.wire.rows_answer import FORM_ROWS, SAMPLING_ROWS, TOOL_ROWS
from vlmkit_server.wire.rows_delivery import DELIVERY_ROWS, LABEL_ROWS, OUTPUT_ROWS
from vlmkit_server.wire.rows_prompt import INNER_ROWS, PROMPT_ROWS, VECTOR_ROWS

SECTIONS = MappingProxyType(
    {
        "How tokens are chosen": SAMPLING_ROWS,
        "The form of an answer": FORM_ROWS,
        "Tools": TOOL_ROWS,
        "Prompts": PROMPT_ROWS,
        "Vectors": VECTOR_ROWS,
        "How an answer is sent": DELIVERY_ROWS,
        "What an answer holds besides": OUTPUT_ROWS,
        "Labels, and settings of clients and servers": LABEL_ROWS,
        "Inside messages and other objects": INNER_ROWS,
    }
)


def _by_field(rows: Iterable[Row]) -> MappingProxyType[str, Row]:
    return MappingProxyType({row.field: row for row in rows})


TABLE = _by_field(row for rows in SECTIONS.values() for row in rows)
REPORTED = frozenset(
    row.field
    for row in TABLE.values()
    if row.action == "no effect" or row.elsewhere == "no effect" or row.about != "answer"
)
"""Names that may be counters; any other name is client data."""
