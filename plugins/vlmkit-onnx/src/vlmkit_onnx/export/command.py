"""``vlmkit export``: a model as a folder of ONNX graphs, for machines without torch."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

import click

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.folder.default_precision import default_precision, is_quantized
from vlmkit_onnx.folder.manifest import PlainPrecision, Precision, TowerPrecision

PRECISIONS = get_args(Precision)
PLAIN_PRECISIONS = get_args(PlainPrecision)
TOWER_PRECISIONS = get_args(TowerPrecision)


def export_command(context: BuildContext) -> click.Command:
    """Return the command.

    Args:
        context: the providers of plugins; the tokenizer's writes the text side beside the graphs.
    """

    @click.command()
    @click.argument("model")
    @click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
    @click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="How the decoder's linear layers are stored and computed. A quantized checkpoint is "
        "rounded again.  [default: w8a8; the integers of a quantized checkpoint]",
    )
    @click.option(
        "--vision-precision",
        type=click.Choice(TOWER_PRECISIONS),
        help="The same of the vision tower.  [default: w8a8 where the decoder is of few bits and "
        "features stay near, else fp32]",
    )
    @click.option(
        "--plain-precision",
        type=click.Choice(PLAIN_PRECISIONS),
        help="Of the decoder's layers that a quantized checkpoint has plain, such as its head.  "
        "[default: fp32]",
    )
    def export(
        *,
        model: str,
        folder: Path,
        precision: Precision | None,
        vision_precision: TowerPrecision | None,
        plain_precision: PlainPrecision | None,
    ) -> None:
        """Write MODEL as ONNX into DIR, which must be absent or empty.

        The result is compared with the model before it gets its name. Serve it by naming DIR.
        """
        import vlmkit
        from vlmkit_onnx import text_side
        from vlmkit_onnx.folder.export_cache import refuse_without_exporter

        refuse_without_exporter()
        from vlmkit_onnx.export import stored_form
        from vlmkit_onnx.export.refusal import refuse

        def check(checkpoint: Checkpoint) -> None:
            refuse(checkpoint)
            if precision is None and is_quantized(checkpoint):
                stored_form.refuse(checkpoint)
            elif plain_precision is not None:
                raise click.UsageError(
                    "--plain-precision is for quantized checkpoints, without --precision"
                )

        checkpoint = vlmkit.fetch(model, check=check)
        with Progress() as progress, warnings_of("vlmkit_onnx", progress.tell):
            progress("loading the exporter")
            from vlmkit_onnx.export.exporter import export as export_model

            check(checkpoint)

            def complete(place: Path) -> None:
                progress("writing the text side")
                text_side.keep(context, Checkpoint(checkpoint.name, place), place)

            export_model(
                checkpoint,
                folder,
                precision or default_precision(checkpoint),
                progress,
                vision_precision=vision_precision,
                plain_precision=plain_precision or "fp32",
                complete=complete,
            )
        click.echo(str(folder))

    return export


@contextmanager
def warnings_of(package: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Show warnings of a package, which the log of a command leaves out."""
    logger, handler = logging.getLogger(package), _WarningHandler(tell)
    if logger.isEnabledFor(logging.WARNING):  # the log is shown
        yield
        return
    before = logger.level, logger.propagate
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _WarningHandler(logging.Handler):
    """Passes warnings to a function."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a warning to the function."""
        self._tell(f"warning: {record.getMessage()}")


class Progress:
    """Shows the current stage on standard error: one changing line, or a line for each stage.

    Without a terminal, a stage that counts (``converting layers 3/24``) is one line.
    """

    def __init__(self) -> None:
        self._status: Any = None
        self._shown = ""

    def __call__(self, stage: str) -> None:
        """Show the name of the current stage."""
        if self._status is not None:
            self._status.update(stage)
            return
        name = stage.rstrip("0123456789/ ")
        if name != self._shown:
            click.echo(name, err=True)
            self._shown = name

    def tell(self, text: str) -> None:
        """Print a line above the changing one."""
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False)
        else:
            click.echo(text, err=True)

    def __enter__(self) -> Self:
        """Start the changing line, if there is a terminal."""
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the changing line."""
        if self._status is not None:
            self._status.stop()
