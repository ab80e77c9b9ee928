"""Runs an answer in the background: reads it into an event log, and stores it at its end."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from litestar.types import Scope

from vlmkit_server.admission.admission import admission_of
from vlmkit_server.apis.openai_responses.event_log import EventLog
from vlmkit_server.apis.openai_responses.events import ResponseEvents
from vlmkit_server.exchange.service import Service
from vlmkit_server.exchange.streaming import Chunks, check_not_aborted
from vlmkit_server.http.caller import tenant_or_network


async def run_in_background(
    stream: Chunks,
    events: ResponseEvents,
    log: EventLog,
    *,
    on_growth: Callable[[int], None],
    store_body: Callable[[bytes], None],
    service: Service,
    scope: Scope,
    leases: AsyncExitStack,
) -> None:
    """Read an answer to its end, independently of its client.

    Args:
        stream: an answer that was accepted.
        events: encodes the answer, and stores it when it is complete.
        log: receives the events.
        on_growth: called with the number of bytes in the log.
        store_body: called with the body of a response that failed or was cancelled.
        service: stops the answer when the server shuts down.
        scope: the scope of the request that started it.
        leases: keep the model in memory; closed at the end.
    """

    async def read_answer() -> None:
        log.add(events.opening())
        while chunks := await stream.next_chunks():
            if data := events.chunks(chunks):
                log.add(data)
                on_growth(log.num_bytes)
            check_not_aborted(chunks)

    try:
        async with leases:
            await admission_of(scope).attend(read_answer(), None)
            last = await service.offload.run(
                partial(events.closing, stream.usage), tenant_or_network(scope)
            )
    except Exception as error:  # noqa: BLE001 - clients that retrieve the response must see the failure
        last = events.cancelled() if log.is_cancelled else events.failed(error, scope)
        store_body(events.body)
    finally:
        stream.abort()
    log.add(last)
    log.close()
    on_growth(log.num_bytes)
