"""The server without models, so that ``vlmkit plan`` can measure the memory that it takes.

Opens no port, keeps no data folder and no log, and starts no monitor and no tool source.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from vlmkit.config import Config
from vlmkit.config.renderer_plan import WorkerProcesses
from vlmkit.kit import heap
from vlmkit.plugins.loader import Plugins
from vlmkit_server.commands.components import apis, request_fields
from vlmkit_server.offline import offline_server
from vlmkit_server.settings.server import ServerSettings

T = TypeVar("T")


def beside(config: Config, plugins: Plugins, measure: Callable[[WorkerProcesses], T]) -> T:
    """Return what a function returns that runs beside the application.

    Args:
        config: the settings of the server and its components.
        plugins: the plugins that provide them.
        measure: gets the worker processes that a served model has.

    Raises:
        VlmkitError: a component of the server cannot be built.
    """
    from vlmkit_server import run  # noqa: F401 - what serves is resident, too

    settings = config.table("server", ServerSettings)
    heap.limit_arenas()
    return asyncio.run(_beside(config, settings, plugins, measure))


async def _beside(
    config: Config,
    settings: ServerSettings,
    plugins: Plugins,
    measure: Callable[[WorkerProcesses], T],
) -> T:
    application = offline_server(
        {},
        settings,
        fetch=config.fetch,
        apis=apis(config, plugins),
        request_fields=request_fields(plugins),
    )
    async with application:
        return measure(settings.worker_processes)
