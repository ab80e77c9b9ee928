"""Worker threads that tenants share, and their queue."""

import gc
import threading
import weakref
from concurrent.futures import Future
from functools import partial

import pytest

from vlmkit.errors import RequestCancelled
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.running.scheduling.fair_executor import FairExecutor, FairTaskQueue


def started(queue: FairTaskQueue[str], num: int) -> list[str | None]:
    return [queue.start() for _ in range(num)]


def test_the_tenant_with_the_least_running_work_is_next():
    queue = FairTaskQueue[str]()
    for item in ("a1", "a2", "a3", "b1"):
        queue.put(item[0], item)
    assert started(queue, 3) == ["a1", "b1", "a2"]
    queue.finish("b")
    queue.put("b", "b2")
    assert started(queue, 3) == ["b2", "a3", None]


def test_equal_tenants_take_turns_and_a_newcomer_goes_before_a_burst():
    queue = FairTaskQueue[str]()
    for item in ("a1", "a2", "a3"):
        queue.put("a", item)
    order = []
    for newcomer in ("", "b1", "c1"):
        if newcomer:
            queue.put(newcomer[0], newcomer)
            queue.put(newcomer[0], newcomer + "+")
        order.append(queue.start())
        queue.finish((order[-1] or "")[0])
    assert order == ["a1", "b1", "c1"]
    rest = []
    while (item := queue.start()) is not None:
        rest.append(item)
        queue.finish(item[0])
    assert rest == ["a2", "b1+", "c1+", "a3"]


def test_a_tenant_never_runs_more_tasks_than_its_maximum():
    queue = FairTaskQueue[str](max_running=2)
    for item in ("a1", "a2", "a3", "b1"):
        queue.put(item[0], item)
    assert started(queue, 4) == ["a1", "b1", "a2", None]
    queue.finish("a")
    assert queue.start() == "a3"


def test_removed_items_never_start_and_absent_tenants_are_forgotten():
    queue = FairTaskQueue[str]()
    queue.put("a", "a1")
    queue.put("a", "a2")
    queue.remove("a", "a1")
    queue.remove("a", "a1")
    queue.remove("b", "b1")
    assert queue.num_waiting == 1
    assert started(queue, 2) == ["a2", None]
    queue.finish("a")
    assert not any(vars(queue)[name] for name in ("_waiting", "_running", "_started"))


def blocked(
    executor: FairExecutor, tenant: str, num: int
) -> "tuple[threading.Event, list[Future]]":
    """Occupy threads for a tenant until an event is set."""
    go_on = threading.Event()
    return go_on, [executor.submit(tenant, go_on.wait) for _ in range(num)]


def test_a_tenants_burst_leaves_a_thread_to_others():
    executor = FairExecutor(3, "test", max_running=2)
    go_on, futures = blocked(executor, "a", 20)
    try:
        assert [executor.submit("b", lambda: "done").result(300) for _ in range(3)]
        assert not any(future.done() for future in futures)
        assert sum(future.running() for future in futures) <= 2
    finally:
        go_on.set()
    assert all(future.result(300) for future in futures)


def test_cancelled_work_leaves_the_queue_and_is_freed():
    executor = FairExecutor(1, "test")
    go_on, _ = blocked(executor, "a", 1)
    ran = []
    waiting = [executor.submit("b", lambda: ran.append(1)) for _ in range(5)]
    assert all(future.cancel() for future in waiting)
    assert executor._queue.num_waiting <= 1  # the blocking task may not have started
    go_on.set()
    assert executor.submit("b", lambda: "last").result(300) == "last"
    assert not ran


def test_work_that_raises_passes_its_error_on_and_costs_no_thread():
    executor = FairExecutor(1, "test")
    for error in (ValueError("no"), SystemExit(3)):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)):
            executor.submit("a", fail).result(300)
    assert executor.submit("a", lambda: 5).result(300) == 5


def test_a_shutdown_runs_queued_work_and_refuses_new_work():
    executor = FairExecutor(1, "test")
    go_on, _ = blocked(executor, "a", 1)
    waiting = executor.submit("a", lambda: "done")
    executor.shutdown()
    with pytest.raises(RuntimeError):
        executor.submit("a", print)
    go_on.set()
    assert waiting.result(300) == "done"


def test_a_cancellation_runs_each_callback_once_and_late_ones_immediately():
    cancellation, calls = Cancellation(), []
    with cancellation.calling(lambda: calls.append("gone")):
        pass
    cancellation.check()
    with cancellation.calling(lambda: calls.append("one")):
        cancellation.cancel()
        cancellation.cancel()
        assert calls == ["one"]
    with pytest.raises(RequestCancelled):
        cancellation.check()
    with cancellation.calling(lambda: calls.append("late")):
        assert calls == ["one", "late"]
    assert cancellation.is_cancelled


def test_finished_work_is_freed_without_garbage_collection():
    """Otherwise, the files and results of a request would stay until the next one."""

    class Content:
        pass

    executor, content = FairExecutor(1, "test"), Content()
    reference = weakref.ref(content)
    gc.collect()
    gc.disable()
    try:
        future = executor.submit("", partial(id, content))
        assert future.result(60)
        del future, content
        executor.submit("", int).result(60)  # the thread has dropped the previous task
        assert reference() is None
    finally:
        gc.enable()
        executor.shutdown()
