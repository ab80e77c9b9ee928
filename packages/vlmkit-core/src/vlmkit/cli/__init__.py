"""The ``vlmkit`` command, with one module for each of its commands. Computes nothing itself.

To keep start-up short, modules import what only some commands need inside functions.
"""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from vlmkit import __version__
from vlmkit.cli import ask, chat, config, doctor, models, output, plan, plugins
from vlmkit.cli.group import CommandGroup, show_help
from vlmkit.errors import ConfigError, EngineFailed, UnknownPlugin, VlmkitError

EXIT_FAILED, EXIT_USAGE, EXIT_ENGINE, EXIT_INTERRUPTED = 1, 2, 3, 130
LAST_S = 10.0  # time for Python to end after an engine failed, which may hang forever

EPILOG = """\b
First steps:
  vlmkit plugins                                 what is installed
  vlmkit models list                             models on this machine
  vlmkit ask demo "What is this?" --image a.png  one answer
  vlmkit serve demo                              OpenAI's API on http://127.0.0.1:8000/v1
"""


@dataclass
class State:
    """State of the whole command line.

    Attributes:
        debug: whether to show tracebacks and the log.
        ends_process: whether the process ends with the command.
    """

    debug: bool = False
    ends_process: bool = False


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="vlmkit")
@click.option(
    "--debug",
    is_flag=True,
    envvar="VLMKIT_DEBUG",
    help="Show tracebacks and the log; so does VLMKIT_DEBUG=1.",
)
@click.pass_context
def vlmkit(context: click.Context, *, debug: bool) -> None:
    """Answers about images, from any vision-language model."""
    context.obj.debug = debug
    # Without --debug only the error is shown; the log would repeat it with its cause.
    logging.basicConfig(level=logging.INFO if debug else logging.CRITICAL)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (
    ask.ask,
    chat.chat,
    plugins.plugins,
    doctor.doctor,
    plan.plan,
    config.config,
    models.models,
    show_help,
):
    vlmkit.add_command(_command)


def main() -> NoReturn:
    """Run the command line and end the process."""
    output.use_utf8()
    code = run(sys.argv[1:], ends_process=True)
    if code == EXIT_ENGINE:  # a hanging engine must not keep the process alive
        last = threading.Timer(LAST_S, os._exit, (code,))
        last.daemon = True
        last.start()
    sys.exit(code)


def run(arguments: Sequence[str], *, ends_process: bool = False) -> int:
    """Run the command line and return its exit code.

    0 is success, 1 failure, 2 wrong usage, 3 an engine that failed for good, and 130 an interrupt.
    """
    state = State(ends_process=ends_process)
    try:
        code = vlmkit.main(list(arguments), "vlmkit", standalone_mode=False, obj=state)
    except click.ClickException as error:
        output.usage_error(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except VlmkitError as error:
        if state.debug:
            traceback.print_exc()
        output.error(error, state.debug)
        if isinstance(error, EngineFailed):
            return EXIT_ENGINE
        return EXIT_USAGE if isinstance(error, ConfigError | UnknownPlugin) else EXIT_FAILED
    except Exception as error:
        if state.debug:
            raise
        if not (isinstance(error, OSError) and output.write_failure(error)):
            output.bug(error)
        return EXIT_FAILED
    return code if isinstance(code, int) else 0
