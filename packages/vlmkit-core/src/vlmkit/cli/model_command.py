"""For commands of plugins that load one model: its options, its config, and its runner. Public.

A command takes the options of :func:`configured`, and gives them to a :class:`CommandModel`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec

from vlmkit.cli.loading import Stages, read_with_plugins, wanted_of
from vlmkit.cli.options import configured, stated
from vlmkit.config.renderer_plan import WorkerProcesses
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.checkpoint import Checkpoint

__all__ = ["CommandModel", "WorkerProcesses", "configured", "stated"]

S = TypeVar("S", bound=msgspec.Struct)


class CommandModel:
    """The model of a command, chosen and not yet built.

    Args:
        model: its name; the only one of the config, or the only one installed, if None.
        config_file: the file of ``--config``.
        assignments: the settings of ``--set``.
        options: settings that further options give, by their full names.

    Raises:
        click.UsageError: there is no model, or there are several.
        VlmkitError: the config is invalid.
    """

    def __init__(
        self,
        model: str | None,
        config_file: Path | None,
        assignments: Sequence[str],
        options: Mapping[str, str],
    ) -> None:
        layered, self._plugins = read_with_plugins(config_file, assignments, options)
        self._config = layered.config
        self._wanted = wanted_of(model, layered.config, self._plugins)

    @property
    def name(self) -> str:
        """What clients call the model."""
        from vlmkit.assembly.sources import name_of

        return name_of(self._wanted.entry)

    def table(self, name: str, kind: type[S]) -> S:
        """Return a table of the config that a plugin owns."""
        return self._config.table(name, kind)

    def files(self) -> Checkpoint:
        """Return the files of the model, after their download.

        Raises:
            VlmkitError: the model cannot be found, or not be loaded here.
        """
        from vlmkit.assembly.load import find_files

        return find_files(self._wanted.entry, self._config, self._plugins)

    def build_encoder(self) -> MediaEncoder:
        """Build the media encoder of the model alone, which the caller closes.

        Raises:
            VlmkitError: the model has none, or cannot be loaded.
        """
        from vlmkit.assembly.load import assemble_encoder

        with closing(Stages(lists=True)) as stages:
            return assemble_encoder(self._wanted.entry, self._config, self._plugins, stages)

    def build(
        self,
        observers: Mapping[str, Callable[[], Observer | None]],
        workers: WorkerProcesses | None = None,
    ) -> Runner:
        """Build the runner of the model, which the caller closes; shows the stages of loading.

        Args:
            observers: functions that create observers of its requests, by name.
            workers: its worker processes; None for none.

        Raises:
            VlmkitError: the model cannot be loaded.
        """
        from vlmkit.assembly.load import assemble

        with closing(Stages(lists=True)) as stages:
            return assemble(
                self._wanted.entry, self._config, self._plugins, stages, observers, workers
            )
