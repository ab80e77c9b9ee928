"""Doing the same to several things side by side, so that nothing of it is left when one fails."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


async def together(work: Callable[[I], Awaitable[T]], items: Iterable[I], num: int) -> list[T]:
    """Return what comes of each item, in their order; of several that fail, raise for the first.

    Args:
        work: is cancelled where another failed, or nobody waits any more.
        items: what is worked on.
        num: of how many at once.
    """
    places = asyncio.Semaphore(num)

    async def at_its_turn(item: I) -> T:
        async with places:
            return await work(item)

    tasks = [asyncio.ensure_future(at_its_turn(item)) for item in items]
    try:
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
