"""The offload executor shares one thread between tenants."""

import asyncio
import threading

from vlmkit_server.exchange.offload import OffloadExecutor


def test_a_burst_of_one_tenant_does_not_delay_work_of_another():
    order: list[str] = []
    may_begin = threading.Event()

    async def run() -> None:
        executor = OffloadExecutor()
        first = asyncio.ensure_future(executor.run(may_begin.wait, "burst"))
        await asyncio.sleep(0)
        burst = [executor.run(lambda: order.append("burst"), "burst") for _ in range(20)]
        other = [executor.run(lambda: order.append("other"), "other") for _ in range(3)]
        waiting = [asyncio.ensure_future(each) for each in (*burst, *other)]
        await asyncio.sleep(0)
        may_begin.set()
        await asyncio.gather(first, *waiting)
        await executor.close()

    asyncio.run(run())

    assert order[:6] == ["other", "burst", "other", "burst", "other", "burst"]
    assert len(order) == 23


def test_cancelled_waiting_work_never_runs():
    ran: list[int] = []
    may_begin = threading.Event()

    async def run() -> None:
        executor = OffloadExecutor()
        first = asyncio.ensure_future(executor.run(may_begin.wait, "a"))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(executor.run(lambda: ran.append(1), "a"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        may_begin.set()
        await first
        await executor.run(lambda: None, "a")
        await executor.close()

    asyncio.run(run())

    assert not ran
