"""Runs the application of a server without a port, for work that needs no clients.

Requests pass everything that those of clients pass, but keys, rate limits and the deadline. Models
are loaded first. It does not serve: :mod:`vlmkit_server.run` does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType

import msgspec

from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.settings.fetch import FetchSettings
from vlmkit_server.apis.batches.in_process_client import InProcessClient
from vlmkit_server.app import create_app
from vlmkit_server.exchange.service import KnownFields, Service
from vlmkit_server.fleet.load_failure import as_exception
from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.interfaces.api import Api
from vlmkit_server.interfaces.tool_source import ToolSource
from vlmkit_server.settings.server import DataSettings, ServerSettings
from vlmkit_server.tools.toolbox import Toolbox


class OfflineServer:
    """An application whose models are loaded.

    Args:
        service: its state.
        client: sends requests to it.

    Attributes:
        client: as above.
    """

    def __init__(self, service: Service, client: InProcessClient) -> None:
        self._service = service
        self.client = client

    @property
    def num_concurrent(self) -> int:
        """How many requests keep the engines of all models full."""
        limits = [model.facts.limits for model in self._service.models.values() if model.facts]
        wanted = 2 * sum(each.max_sequences for each in limits)
        return max(1, min(wanted, self._service.admission.limits.requests.most_in_parts))

    def on_failure(self, notify: Callable[[], None]) -> None:
        """Call a function, in the event loop, when an engine has failed for good."""
        event_loop = asyncio.get_running_loop()

        def in_event_loop() -> None:
            with suppress(RuntimeError):  # it has ended
                event_loop.call_soon_threadsafe(notify)

        self._service.fleet.recovery.on_error(in_event_loop)


@asynccontextmanager
async def offline_server(
    specs: Mapping[str, ModelSpec],
    settings: ServerSettings,
    *,
    fetch: FetchSettings,
    apis: Mapping[str, Api],
    tool_sources: Mapping[str, ToolSource] = MappingProxyType({}),
    request_fields: KnownFields = MappingProxyType({}),
    component_names: ComponentNames = UNKNOWN,
) -> AsyncIterator[OfflineServer]:
    """Load the models, and yield an application without a port.

    Stored files and batches of a server with the same config are left alone.

    Args:
        specs: the models by served name.
        settings: the server's settings.
        fetch: whether images named by URL are fetched.
        apis: the APIs, each by its name.
        tool_sources: the sources of tools that requests may use.
        request_fields: fields that plugins add to requests.
        component_names: names the providers of components in errors.

    Raises:
        EngineFailed: an engine failed for good meanwhile.
        Exception: a model could not be loaded.
    """
    settings = msgspec.structs.replace(settings, data=DataSettings(), access_log="", audit_log="")
    toolbox = Toolbox(tool_sources, component_names)
    service = Service(specs, settings, toolbox, {}, request_fields, component_names, fetch)
    try:
        app = create_app(service, apis=apis, component_names=component_names)
        lifespan = app.lifespan()
        await lifespan.__aenter__()
        try:
            await _load(service)
            yield OfflineServer(service, InProcessClient(app))
        finally:  # which would wrap an error in a group
            await lifespan.__aexit__(None, None, None)
    finally:
        await asyncio.to_thread(service.fleet.close)
        service.close_logs()
    if service.fleet.recovery.error is not None:
        raise service.fleet.recovery.error


async def _load(service: Service) -> None:
    """Load all models.

    Raises:
        Exception: one could not be loaded.
    """
    for model in service.models.values():
        with suppress(Unavailable):  # which is for clients
            await service.fleet.control.load(model)
        if model.error is not None:
            raise as_exception(model.name, model.error)
