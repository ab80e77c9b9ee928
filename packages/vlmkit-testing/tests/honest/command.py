"""A command that counts letters, as the source text of a plugin file."""

SOURCE = '''
"""Counts letters."""

import json

import click

from vlmkit.errors import CheckpointError
from vlmkit.plugins.hookspecs import hookimpl

VLMKIT_API = (1, 0)


def build(context):
    @click.command()
    @click.argument("word")
    @click.option("--json", "as_json", is_flag=True, help="Write JSON.")
    def count(word, as_json):
        """Count the letters of WORD."""
        if word == "nothing":
            raise CheckpointError("'nothing' has no letters", hint="name another word")
        click.echo(json.dumps({"letters": len(word)}) if as_json else len(word))

    return count


@hookimpl
def vlmkit_register_commands(registry):
    registry.add("count", build, description="Count the letters of a word.")
'''


class Count:
    """The correct command."""

    replaced: tuple[tuple[str, str], ...] = ()

    @classmethod
    def source(cls) -> str:
        """Return the text of the plugin file, with the replacements of this class."""
        source = SOURCE
        for old, new in cls.replaced:
            assert old in source
            source = source.replace(old, new)
        return source
