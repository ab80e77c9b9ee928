"""Commands that break one promise each, derived from a command that counts letters."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from honest.command import Count

from broken.broken import Broken, Table
from vlmkit_testing import CommandContract

RAISED = '            raise CheckpointError("\'nothing\' has no letters", hint="name another word")'
ECHOED = 'click.echo(json.dumps({"letters": len(word)}) if as_json else len(word))'


class HasNoDescription(Count):
    replaced = (('description="Count the letters of a word."', 'description=""'),)


class HasNoHelp(Count):
    replaced = (('        """Count the letters of WORD."""\n', ""),)


class PrintsWhenItIsBuilt(Count):
    replaced = (("def build(context):\n", 'def build(context):\n    click.echo("hello")\n'),)


class WarnsWhenItIsBuilt(Count):
    replaced = (
        ("def build(context):\n", 'def build(context):\n    click.echo("hello", err=True)\n'),
    )


class ImportsArrays(Count):
    replaced = (("def build(context):\n", "def build(context):\n    import numpy\n"),)


class AcceptsAnyOption(Count):
    replaced = (
        ("@click.command()", '@click.command(context_settings={"ignore_unknown_options": True})'),
    )


class ReportsMisuseAsFailure(Count):
    replaced = (
        ("@click.command()", "@click.command(cls=Sloppy)"),
        (
            "def build(context):\n",
            """class Sloppy(click.Command):
    def parse_args(self, ctx, args):
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise click.ClickException(error.message)


def build(context):
""",
        ),
    )


class AcceptsMissingArguments(Count):
    replaced = (
        ('@click.argument("word")', '@click.argument("word", required=False, metavar="WORD")'),
    )


class ExitsWithItsResult(Count):
    replaced = ((ECHOED, f"{ECHOED}\n        return len(word)"),)


class FailsAsABug(Count):
    replaced = ((RAISED, '            raise KeyError("nothing")'),)


class FailsWithCodeZero(Count):
    replaced = (
        (
            RAISED,
            '            click.echo("error: there are no letters", err=True)\n            return',
        ),
    )


class FailsWithoutAMessage(Count):
    replaced = ((RAISED, "            raise SystemExit(1)"),)


class ReportsErrorsOnStandardOutput(Count):
    replaced = ((RAISED, f'            click.echo("failed")\n{RAISED}'),)


class PrintsBeforeJson(Count):
    replaced = ((ECHOED, f'click.echo("here it is:")\n        {ECHOED}'),)


class PrintsPythonInsteadOfJson(Count):
    replaced = (('json.dumps({"letters": len(word)})', '{"letters": len(word)}'),)


class PrintsNan(Count):
    replaced = ((ECHOED, 'click.echo(json.dumps({"mean": float("nan")}))'),)


class OnCommand(CommandContract):
    name = "count"

    def __init__(self, kind: type[Count]) -> None:
        self._folder = Path(tempfile.mkdtemp())
        self._file = self._folder / "counting.py"
        self._file.write_text(kind.source())

    def tidy(self) -> None:
        shutil.rmtree(self._folder)

    def environ(self) -> Mapping[str, str]:
        return {"VLMKIT_PLUGINS": json.dumps([str(self._file)])}

    def works(self) -> tuple[tuple[str, ...], ...]:
        return (("fox",),)

    def fails(self) -> tuple[tuple[str, ...], ...]:
        return (("nothing",),)


TABLE = Table(
    CommandContract,
    OnCommand,
    Count,
    (
        Broken(
            HasNoDescription,
            "A command has a description of one line.",
            "it_is_listed_with_what_it_does",
        ),
        Broken(HasNoHelp, "The help states what the command does.", "its_help_says_what_it_does"),
        Broken(
            PrintsWhenItIsBuilt,
            "--help writes only the help.",
            "its_help_says_what_it_does",
        ),
        Broken(
            WarnsWhenItIsBuilt,
            "Building a command writes nothing.",
            "its_help_says_what_it_does",
        ),
        Broken(
            ImportsArrays,
            "--help imports no heavy library.",
            "its_help_imports_nothing_heavy",
        ),
        Broken(AcceptsAnyOption, "An unknown option is refused.", "misuse_exits_with_code_2"),
        Broken(ReportsMisuseAsFailure, "Misuse exits with code 2.", "misuse_exits_with_code_2"),
        Broken(
            AcceptsMissingArguments,
            "A missing argument is misuse.",
            "misuse_exits_with_code_2",
        ),
        Broken(ExitsWithItsResult, "Success exits with code 0.", "success_exits_with_code_0"),
        Broken(
            FailsAsABug,
            "Errors come from vlmkit.errors.",
            "a_failure_is_one_sentence_on_standard_error",
        ),
        Broken(
            FailsWithCodeZero,
            "A failure does not exit with code 0.",
            "a_failure_is_one_sentence_on_standard_error",
        ),
        Broken(
            FailsWithoutAMessage,
            "An error is reported in a sentence.",
            "a_failure_is_one_sentence_on_standard_error",
        ),
        Broken(
            ReportsErrorsOnStandardOutput,
            "Errors are on standard error.",
            "a_failure_is_one_sentence_on_standard_error",
        ),
        Broken(PrintsBeforeJson, "--json writes one document and nothing else.", "json_stays_json"),
        Broken(PrintsPythonInsteadOfJson, "--json writes JSON.", "json_stays_json"),
        Broken(
            PrintsNan,
            "--json writes JSON, which has no NaN.",
            "json_stays_json",
        ),
    ),
)
