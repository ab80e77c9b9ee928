"""The application of a config for another ASGI server, with models that the caller runs. Public.

:mod:`vlmkit_server.run` serves a config with a server that has deadlines for connections, and that
drains. Another server must do both itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from vlmkit.errors import ConfigError
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Runner

if TYPE_CHECKING:
    from litestar import Litestar

S = TypeVar("S", bound=msgspec.Struct)

RunnerMaker: TypeAlias = Callable[[Mapping[str, Callable[[], Observer | None]]], Runner]
"""Returns the runner of a model, given functions that create observers of its requests, by name."""
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - stands for an address that others reach; nothing listens


class ConfiguredApp:
    """The application of a config, whose models are runners of the caller.

    Args:
        config_file: the config.
        runners: for each model of the config, what makes its runner.
        is_public: whether other machines can reach the server.

    Attributes:
        app: the ASGI application; its lifespan loads the models.

    Raises:
        ConfigError: the config is invalid, or the server is public and requires no API key.
        VlmkitError: an API, a monitor or a source of tools cannot be built.
    """

    def __init__(
        self, config_file: Path, runners: Mapping[str, RunnerMaker], is_public: bool
    ) -> None:
        from vlmkit_server.app import create_app
        from vlmkit_server.commands.components import observers_of, request_fields
        from vlmkit_server.commands.serve import prepared
        from vlmkit_server.exchange.service import Service
        from vlmkit_server.tools.toolbox import Toolbox

        address = {"server.host": ANY_ADDRESS} if is_public else {}
        found = prepared(list(runners), config_file, (), address, listens=True)
        specs = {
            name: replace(
                spec,
                load=partial(runners[name], observers_of(found.monitors, name)),
                weigh=lambda: 0,
            )
            for name, spec in found.specs.items()
        }
        self._service = Service(
            specs,
            found.settings,
            Toolbox(found.tool_sources, found.component_names),
            found.monitors,
            request_fields(found.plugins),
            found.component_names,
            found.config.fetch,
        )
        self.app: Litestar = create_app(
            self._service, apis=found.apis, component_names=found.component_names
        )

    @property
    def error(self) -> Exception | None:
        """Why the server cannot continue; None while it can."""
        return self._service.fleet.recovery.error

    def close(self) -> None:
        """Close the models and the logs, once the lifespan of the application is over."""
        self._service.fleet.close()
        self._service.close_logs()
        self._service.monitors.close()


def models_of(config_file: Path, table: str, kind: type[S]) -> tuple[tuple[str, ...], S]:
    """Return the names of the models of a config, and a table of it that a plugin owns.

    Raises:
        ConfigError: the config is invalid, or two models have one name.
        click.UsageError: there is no model.
    """
    from vlmkit.assembly.sources import name_of
    from vlmkit.cli.loading import read_with_plugins, wanted_entries

    layered, plugins = read_with_plugins(config_file, ())
    names = tuple(name_of(each) for each in wanted_entries((), layered.config, plugins))
    if len(set(names)) < len(names):
        raise ConfigError("two models have one name", hint="give each its own in [[models]]")
    return names, layered.config.table(table, kind)
