"""Concurrent work: which error is raised, and that no task is left."""

import asyncio

import pytest

from vlmkit_server.gather import gather, in_order


class Work:
    """Items whose names say how they end: ``endless``, ``late`` or ``fails``."""

    def __init__(self):
        self.begun, self.left = [], []
        self._ends = asyncio.Event()

    async def __call__(self, item):
        self.begun.append(item)
        try:
            if item.startswith("endless"):
                await asyncio.Event().wait()
            if item.startswith("late"):
                await self._ends.wait()
                for _ in range(10):
                    await asyncio.sleep(0)
            if item.endswith("fails"):
                raise ValueError(item)
            return item.upper()
        finally:
            self.left.append(item)
            self._ends.set()


def outcome(way, *items):
    """Return the results or the error, and the work; no task may be left."""

    async def run():
        work = Work()
        try:
            return await way(work, items, 8), work
        except ValueError as error:
            return str(error), work
        finally:
            assert sorted(work.left) == sorted(work.begun)

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("way", [gather, in_order])
def test_results_have_the_order_of_the_items(way):
    assert outcome(way, "late a", "b", "c")[0] == ["LATE A", "B", "C"]
    assert outcome(way)[0] == []


def test_the_first_error_cancels_all_other_items():
    found, work = outcome(gather, "endless", "fails", "endless too", "fails")
    assert found == "fails"
    assert set(work.left) >= {"endless", "endless too"}


def test_of_simultaneous_errors_the_first_is_raised():
    assert outcome(gather, "endless", "1 fails", "2 fails", "3 fails")[0] == "1 fails"


@pytest.mark.parametrize(("way", "expected"), [(gather, "2 fails"), (in_order, "late 1 fails")])
def test_a_later_item_may_fail_first_unless_the_order_counts(way, expected):
    assert outcome(way, "late 1 fails", "2 fails")[0] == expected


@pytest.mark.parametrize("way", [gather, in_order])
def test_a_cancelled_caller_leaves_no_task(way):
    async def left():
        work = Work()
        waiting = asyncio.ensure_future(way(work, ["endless a", "endless b"], 8))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(work.begun) == 2
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return work

    assert len(asyncio.run(left()).left) == 2
