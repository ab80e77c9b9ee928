"""When a failed model is loaded again, and when the server gives up."""

import asyncio
import logging
from functools import partial

import pytest
from running_server import eventually, mock_pipeline, running

from vlmkit.errors import EngineFailed
from vlmkit.running.pipeline.forwarded_runner import ForwardedRunner
from vlmkit_server.fleet import load_watch
from vlmkit_server.fleet.recovery import STEADY_S, Restarts
from vlmkit_server.settings.fleet import FleetSettings


def test_each_wait_before_a_restart_is_twice_the_last_one():
    restarts = Restarts(4)
    assert [restarts.next_wait_s("one", 0.0) for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, None]
    assert restarts.next_wait_s("two", 0.0) == 1.0


def test_the_wait_before_a_restart_has_a_maximum():
    restarts = Restarts(100)
    assert [restarts.next_wait_s("one", 0.0) for _ in range(100)][-1] == 60.0


def test_a_model_that_ran_for_long_restarts_after_the_first_wait():
    restarts = Restarts(1)
    assert restarts.next_wait_s("one", 0.0) == 1.0
    assert restarts.next_wait_s("one", STEADY_S) is None
    assert restarts.next_wait_s("one", 2 * STEADY_S + 1) == 1.0


def test_a_slow_load_is_logged_repeatedly_until_its_timeout(monkeypatch, caplog):
    monkeypatch.setattr(load_watch, "FIRST_WARNING_S", 0.01)
    given_up = []

    async def watched():
        is_over = asyncio.Event()

        def give_up(name):
            given_up.append(name)
            is_over.set()

        watch = load_watch.LoadWatch(0.1, give_up)
        watch.begin("one")
        await is_over.wait()
        watch.end()

    caplog.set_level(logging.WARNING)
    asyncio.run(watched())
    assert given_up == ["one"]
    assert "loading model 'one' has taken 0.01 s so far" in caplog.text
    assert "loading model 'one' has taken 0.02 s so far" in caplog.text


class FailingRunner(ForwardedRunner):
    """A runner that fails with the error that a test tells."""

    def __init__(self, runner):
        super().__init__(runner)
        self.on_failure = partial(setattr, self, "tell")


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (EngineFailed("its server\ndoes not answer"), "EngineFailed: its server does not answer"),
        (ConnectionError("a client's words"), "ConnectionError"),
    ],
)
def test_the_log_has_the_reason_of_a_failed_runner_and_no_text_of_other_errors(
    caplog, error, logged
):
    runner = FailingRunner(mock_pipeline())
    with running({"one": runner}) as server:
        runner.tell(error)
        assert eventually(lambda: server.service.fleet.recovery.error is not None)
    (record,) = [each for each in caplog.records if each.name == "vlmkit_server.fleet.recovery"]
    assert record.getMessage() == f"the engine of model 'one' failed: {logged}"


@pytest.mark.parametrize("timeout_s", [None, 0.05])
def test_an_endless_load_ends_the_server_only_if_there_is_a_timeout(loader, timeout_s):
    fleet = FleetSettings(load_timeout_s=timeout_s)
    specs = {"one": loader.spec("one")}
    loader.block("one")
    with running(specs, fleet=fleet) as server:
        assert eventually(lambda: loader.num_loads["one"] == 1)
        if timeout_s is not None:
            assert eventually(lambda: server.service.fleet.recovery.error is not None)
            assert "was not loaded within" in str(server.service.fleet.recovery.error)
        loader.release("one")
        if timeout_s is None:
            assert eventually(lambda: server.get("/readyz").status_code == 200)
            assert server.service.fleet.recovery.error is None
