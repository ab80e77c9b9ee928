"""Requests with files and images are all prepared, with any number of threads.

A caller may wait for a future in place of the end of its function.
"""

import asyncio
import queue
import time

import pytest

from vlmkit.errors import RequestError
from vlmkit.image_files.decode_cost import DecodeCost
from vlmkit.running.prompting.prepared_images import PreparedImages
from vlmkit.running.prompting.request_workers import RequestWorkers
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message
from vlmkit.types.request import Request

MOST = 1000
COST = DecodeCost(MOST, 10)
PDF, PICTURE = b"%PDF-1.7", b"BM" + bytes(60)
PARTS = (FilePart(PDF), FilePart(PICTURE), ImagePart(Image((1, 1), PICTURE, cost=COST)))


def request_of(part, tenant=""):
    return Request(messages=[Message("user", (part,))], tenant=tenant)


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("tenants", ["a", "ab"])
def test_requests_that_need_memory_once_opened_do_not_block_requests_with_a_lease(
    num_workers, tenants
):
    bounds = PipelineSettings(
        max_decoding_bytes=MOST, num_workers=num_workers, prepare_timeout_s=20.0
    )
    preparation = RequestWorkers(bounds, 0, PreparedImages(0))

    def work(request, lease):
        time.sleep(0.005)  # a file is opened
        lease.enlarge(MOST, bounds.prepare_timeout_s)
        return lease.granted.done() and lease.num_bytes

    async def all_of_them():
        requests = [request_of(part, tenant) for tenant in tenants for part in PARTS] * 5
        return await asyncio.gather(*(preparation.in_worker(work, each) for each in requests))

    started = time.monotonic()
    assert set(asyncio.run(all_of_them())) == {MOST}
    assert time.monotonic() - started < bounds.prepare_timeout_s
    assert preparation._decode_memory.decoding_bytes == 0


def test_an_error_of_the_function_ends_the_wait_for_a_future_that_nothing_resolves():
    preparation = RequestWorkers(PipelineSettings(), 0, PreparedImages(0))

    def work(request, lease):
        raise RequestError("too long")

    async def caller():
        never = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(60):
            await preparation.in_worker(work, Request(text="Hello"), until=never)

    with pytest.raises(RequestError, match="too long"):
        asyncio.run(caller())


def test_a_result_is_discarded_if_its_caller_is_cancelled_while_it_waits_for_the_future():
    preparation, discarded = (
        RequestWorkers(PipelineSettings(), 0, PreparedImages(0)),
        queue.SimpleQueue(),
    )

    async def caller(has_ended, never):
        def work(request, lease):
            has_ended.get_loop().call_soon_threadsafe(has_ended.set_result, None)
            return "result"

        await preparation.in_worker(work, Request(text="Hello"), discarded.put, until=never)

    async def cancelled():
        loop = asyncio.get_running_loop()
        has_ended = loop.create_future()
        task = asyncio.create_task(caller(has_ended, loop.create_future()))
        async with asyncio.timeout(60):
            await has_ended
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert discarded.get(timeout=60) == "result"  # the worker thread may still return
