"""The parts of a server that its APIs may use."""

from collections.abc import Awaitable, Callable
from typing import Any

from litestar.types import ASGIApp

from vlmkit_server.conversation.request_builder import RequestBuilder
from vlmkit_server.exchange.service import Service
from vlmkit_server.storage.file_storage import FileStorage

Hook = Callable[[], Awaitable[None]]


class Host:
    """The parts of a server that its APIs may use.

    It is no dataclass: the framework would convert the fields of one for every request.

    Args:
        service: the models, the limits and the requests in progress.
        builder: makes requests of conversations.
        files: the uploaded files.
        app: the whole application, for an API that makes requests itself, such as batches. It can
            be called once the server has started.

    Attributes:
        dependencies: objects that Litestar's controllers receive by name.
        on_startup: called when the server starts, in order.
        on_shutdown: called when the server stops, before the models are closed.
    """

    def __init__(
        self, service: Service, builder: RequestBuilder, files: FileStorage, app: ASGIApp
    ) -> None:
        self.service = service
        self.builder = builder
        self.files = files
        self.app = app
        self.dependencies: dict[str, Any] = {}
        self.on_startup: list[Hook] = []
        self.on_shutdown: list[Hook] = []
