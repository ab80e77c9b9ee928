"""``Retry-After`` follows from known times: of a load, a failed load, a restart or a drain."""

import asyncio

import pytest
from running_server import mock_pipeline

from vlmkit_server.admission import admission
from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet import load_failure, model_handle
from vlmkit_server.fleet.load_failure import not_ready, refusal
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.fleet.model_registry import ModelRegistry
from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.http.errors import MAX_RETRY_AFTER_S, RETRY_AFTER_S, waiting_s
from vlmkit_server.settings.fleet import FleetSettings
from vlmkit_server.settings.server import ServerSettings


class Clock:
    now_s = 1000.0

    def monotonic(self):
        return self.now_s

    time = monotonic


@pytest.fixture
def clock(monkeypatch):
    played = Clock()
    for module in (model_handle, load_failure, admission):
        monkeypatch.setattr(module, "time", played)
    return played


@pytest.fixture
def runner():
    with mock_pipeline() as runner:
        yield runner


def retry_after_s(model):
    return not_ready(model, "not there").retry_after_s


def loaded(model, clock, runner, took_s):
    model.mark_loading()
    clock.now_s += took_s
    model.mark_ready(runner)
    model.mark_unloaded()


def test_a_first_load_has_the_default_retry_time(clock):
    model = ModelHandle("one", ModelSpec(load=mock_pipeline), is_expected=False)
    for step in (model.mark_waiting, model.mark_loading):
        step()
        assert retry_after_s(model) == RETRY_AFTER_S
    assert ModelRegistry({"one": ModelSpec()}, FleetSettings()).ready_in_s is None


def test_the_retry_time_of_a_load_follows_from_the_last_load(clock, runner):
    model = ModelHandle("one", ModelSpec(load=mock_pipeline), is_expected=False)
    loaded(model, clock, runner, 40.0)
    model.mark_waiting()
    assert retry_after_s(model) == 40
    model.mark_loading()
    clock.now_s += 12.5
    assert retry_after_s(model) == 28
    clock.now_s += 30.0  # longer than last time, so the rest is unknown
    assert retry_after_s(model) == RETRY_AFTER_S
    model.mark_ready(runner)
    model.mark_unloaded()
    model.mark_waiting()
    assert retry_after_s(model) == 43


def test_the_retry_time_of_a_failed_model_is_its_next_attempt(clock):
    model = ModelHandle("one", ModelSpec(load=mock_pipeline), is_expected=False)
    model.mark_loading()
    model.mark_failed(RuntimeError())
    assert refusal(model).retry_after_s == 30
    clock.now_s += 12.2
    assert refusal(model).retry_after_s == 18


def test_the_retry_time_of_a_restart_is_its_wait_and_its_load(clock, runner):
    registry = ModelRegistry(
        {"one": ModelSpec(load=mock_pipeline)}, FleetSettings(on_engine_failure="restart")
    )
    model = registry.models["one"]
    loaded(model, clock, runner, 5.0)
    model.mark_restarting(clock.now_s + 8.0)
    model.mark_waiting()
    assert retry_after_s(model) == 13
    assert registry.ready_in_s == 13.0


def test_the_retry_time_of_a_drain_is_its_deadline(clock, runner):
    async def drained():
        served = Service({"mock": runner}, ServerSettings())
        with served.admission.opened():
            draining = asyncio.ensure_future(served.admission.drain(40.0))
            await asyncio.sleep(0)
            first = served.admission.closing().retry_after_s
            clock.now_s += 39.5
            last = served.admission.closing().retry_after_s
            clock.now_s += 3.0
            late = served.admission.closing().retry_after_s
        assert await draining
        served.fleet.close()
        return first, last, late

    assert asyncio.run(drained()) == (40, 1, 1)


@pytest.mark.parametrize(
    ("known_s", "expected"),
    [(None, RETRY_AFTER_S), (-3.0, 1), (0.2, 1), (7.0, 7), (7.1, 8), (3600.0, MAX_RETRY_AFTER_S)],
)
def test_the_retry_time_is_in_whole_seconds_up_to_a_minute(known_s, expected):
    assert waiting_s(known_s) == expected
