"""Work that goes on when its request is answered; it has a place in the server like any other."""

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any

from vlmkit_server.exchange.service import Service


class BackgroundWork:
    """Holds what goes on; a drain waits for it.

    Args:
        service: gives places.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], account: str) -> None:
        """Begin some work, which raises nothing.

        Args:
            work: is done to its end.
            account: on whose account it is.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: there are too many requests under way.
        """
        with ExitStack() as places:
            try:
                places.enter_context(self._service.admitted(account))
            except BaseException:
                work.close()
                raise
            places.enter_context(self._service.opened())
            held = places.pop_all()
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: held.close())
