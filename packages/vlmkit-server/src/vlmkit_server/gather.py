"""Doing the same to several things side by side, so that nothing of it is left when one fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


async def gather(work: Callable[[I], Awaitable[T]], items: Iterable[I], num: int) -> list[T]:
    """Return what comes of each item, in their order; as soon as one fails, raise what it raised.

    Of several that fail in one turn of the event loop, it is what the first of them raised.

    Args:
        work: is cancelled where another failed, or nobody waits any more.
        items: what is worked on.
        num: of how many at once.
    """
    async with _begun(work, items, num) as tasks:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return [await task for task in tasks]


async def in_order(work: Callable[[I], Awaitable[T]], items: Iterable[I], num: int) -> list[T]:
    """Return what comes of each item; of several that fail, raise for the first in their order.

    Whoever sends the same again is told the same, whatever was quicker. So a failure waits for
    those before it, and the work should have a bound of time. Arguments as for :func:`together`.
    """
    async with _begun(work, items, num) as tasks:
        return [await task for task in tasks]


@asynccontextmanager
async def _begun(
    work: Callable[[I], Awaitable[T]], items: Iterable[I], num: int
) -> AsyncIterator[list[asyncio.Task[T]]]:
    """Give a task for each item; none is left in the end."""
    places = asyncio.Semaphore(num)

    async def at_its_turn(item: I) -> T:
        async with places:
            return await work(item)

    tasks = [asyncio.ensure_future(at_its_turn(item)) for item in items]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
