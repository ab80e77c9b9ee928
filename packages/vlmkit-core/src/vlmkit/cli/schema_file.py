"""Reads the JSON schema of ``vlmkit ask --schema``. It does not compile it: the model does."""

import codecs
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vlmkit.types.constraint import JsonSchema


def schema_of(file: Path) -> "JsonSchema":
    """Return the constraint that a file states; each keyword of its schema must be enforced.

    Raises:
        click.UsageError: the file cannot be read, or is no schema within the limits of constraints.
    """
    from vlmkit.errors import ConstraintError
    from vlmkit.running.constraints.limits import check_limits
    from vlmkit.types.constraint import MAX_SCHEMA_BYTES, JsonSchema, decoded_schema

    subject = f"--schema: file {str(file)!r}"
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"{subject} cannot be read: {error.strerror}") from error
    try:
        schema = JsonSchema.of(decoded_schema(content.removeprefix(codecs.BOM_UTF8)))
        check_limits(schema)
    except ConstraintError as error:
        raise click.UsageError(f"{subject}: {error}") from error
    return schema
