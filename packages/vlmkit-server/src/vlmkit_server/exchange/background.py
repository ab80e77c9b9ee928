"""Work that continues after its request is answered; it is admitted like a request."""

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any

from vlmkit_server.admission.admission import AdmissionControl


class BackgroundWork:
    """Runs background work; a drain waits for it.

    Args:
        control: admits the work.
    """

    def __init__(self, control: AdmissionControl) -> None:
        self._control = control
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], account: str) -> None:
        """Start some work, which must not raise.

        Args:
            work: the work, which runs to its end.
            account: the tenant or client network that it counts for.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: too many requests are in progress.
        """
        with ExitStack() as permits:
            try:
                permits.enter_context(self._control.permit(account))
            except BaseException:
                work.close()
                raise
            permits.enter_context(self._control.opened())
            held = permits.pop_all()
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: held.close())
