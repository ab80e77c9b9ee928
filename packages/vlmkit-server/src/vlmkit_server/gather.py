"""Runs a function on several items concurrently, and cancels the rest when one fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


async def gather(work: Callable[[I], Awaitable[T]], items: Iterable[I], num: int) -> list[T]:
    """Return the results in the items' order; raise the first error as soon as it occurs.

    If several fail in one turn of the event loop, the first item's error is raised.

    Args:
        work: is cancelled if another item fails or the caller is cancelled.
        items: the items.
        num: how many run at once.
    """
    async with _started(work, items, num) as tasks:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return [await task for task in tasks]


async def in_order(work: Callable[[I], Awaitable[T]], items: Iterable[I], num: int) -> list[T]:
    """Return the results; of several errors, raise the first one in the items' order.

    So a repeated request gets the same error, whichever work is faster. A failure waits for the
    items before it, so the work should have a timeout. The arguments are those of :func:`gather`.
    """
    async with _started(work, items, num) as tasks:
        return [await task for task in tasks]


@asynccontextmanager
async def _started(
    work: Callable[[I], Awaitable[T]], items: Iterable[I], num: int
) -> AsyncIterator[list[asyncio.Task[T]]]:
    """Yield a task for each item; cancel all of them at the end."""
    semaphore = asyncio.Semaphore(num)

    async def limited(item: I) -> T:
        async with semaphore:
            return await work(item)

    tasks = [asyncio.ensure_future(limited(item)) for item in items]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
