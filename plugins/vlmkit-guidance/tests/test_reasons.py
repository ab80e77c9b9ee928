"""Reasons of refusals come from the library, not from the words of the constraint."""

import pytest

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.types.constraint import JsonSchema
from vlmkit_guidance.compiler import GuidanceCompiler

BYTES = Vocabulary([bytes([i]) for i in range(256)], lambda text: [])
ITEMS = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("flaw", "reason", "keyword"),
    [
        ({"format": "phone"}, "it uses a format that is not supported", "format"),
        ({"pattern": "("}, "a pattern is malformed", "pattern"),
    ],
)
def test_the_reason_of_a_refusal_does_not_depend_on_words_of_the_schema(flaw, reason, keyword):
    properties = {"oneOf": ITEMS, "wrong": {"type": "string"} | flaw, "regex": ITEMS}
    schema = JsonSchema.of({"type": "object", "properties": properties})
    with pytest.raises(ConstraintError, match=reason) as caught:
        GuidanceCompiler(BYTES).compile(schema)
    assert caught.value.keyword == keyword
