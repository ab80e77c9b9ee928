"""The watchdog logs and counts slow work, and gives up work that hangs."""

import logging
import threading

import pytest

from mock_model import script, wait_until
from vlmkit.errors import EngineFailed
from vlmkit.model import Model
from vlmkit.running.engine_loop.stream import Channel
from vlmkit.running.faults import watchdog
from vlmkit.running.faults.watchdog import MonitoredTask, Watchdog, listed
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer


class HeldEngine(MockEngine):
    """Computes while its gate is open."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.is_closed = False

    def forward(self, items):
        self.gate.wait()
        return super().forward(items)

    def close(self):
        self.is_closed = True
        super().close()


def held_model(**settings):
    engine = HeldEngine()
    bounds = PipelineSettings(**settings)
    return engine, Model(Pipeline(tokenizer=MockTokenizer(), engine=engine, settings=bounds))


def test_requests_of_a_hanging_step_fail_and_the_model_can_be_closed_once_it_returns():
    engine, model = held_model(slow_step_s=0.1, stuck_step_s=0.4)
    failures = []
    model.runner.on_failure(failures.append)
    engine.gate.clear()
    with pytest.raises(EngineFailed):
        model.generate(script(text="x"))
    with pytest.raises(EngineFailed):
        model.generate("too late")
    assert not model.runner.is_ready
    wait_until(lambda: len(failures) == 1)
    engine.gate.set()
    model.close()
    assert engine.is_closed


def test_closing_a_model_whose_step_never_returns_fails_and_frees_nothing():
    engine, model = held_model(slow_step_s=0.1, stuck_step_s=0.2)
    engine.gate.clear()
    with pytest.raises(EngineFailed):
        model.generate(script(text="x"))
    with pytest.raises(EngineFailed, match="still computes"):
        model.close()
    assert not engine.is_closed
    engine.gate.set()


def test_a_slow_step_is_logged_once_with_its_request_and_counted(caplog):
    caplog.set_level(logging.WARNING)
    engine, model = held_model(slow_step_s=0.1, stuck_step_s=None)
    with model:
        engine.gate.clear()
        request = model.request("private words")
        stream = model.submit(request)
        try:
            wait_until(lambda: model.stats().counters["num_slow_steps"] == 1)
            wait_until(lambda: "a step is still running" in caplog.text)
        finally:
            engine.gate.set()
        stream.result()
        assert model.stats().counters["num_slow_steps"] == 1
    (message,) = (record.getMessage() for record in caplog.records)
    assert "sequences: 1, tokens: " in message
    assert "requests: req-" in message
    assert "test_watchdog.py:" in message
    assert "private" not in message


def monitored(ages, slow_s=1.0, stuck_s=3.0):
    """Return the numbers of slow and stuck tasks among tasks of these durations."""
    now = {"since": 0.0}
    counted, stuck = [], []
    work = MonitoredTask(
        "work", lambda: now["since"], lambda: "", lambda: None, lambda: counted.append(now)
    )
    dog = Watchdog([work], stuck.append, slow_s, stuck_s)
    dog.stop()
    (monitor,) = dog._monitors
    for number, age_s in enumerate(ages):
        now["since"] = 1000.0 * (number + 1)
        checks = [monitor.check(now["since"] + age_s * tenth / 10) for tenth in range(1, 11)]
        stuck += [error for error in checks if error is not None]
    return len(counted), len(stuck)


def test_limits_grow_with_the_longest_duration_so_far():
    assert monitored([0.05, 2.0]) == (1, 0)
    assert monitored([0.9, 8.0]) == (0, 0)  # below ten times the longest
    assert monitored([0.9, 10.0]) == (1, 0)  # above ten times, below thirty times
    assert monitored([0.01, 3.5])[1] > 0


def test_finished_work_is_not_slow():
    assert monitored([0.9] * 20) == (0, 0)


def test_a_request_that_cannot_be_failed_does_not_keep_others_from_failing(monkeypatch):
    fail, broken = Channel.fail, []

    def failing(self, error, wakeups):
        if not broken:
            broken.append(self)
            raise MemoryError
        fail(self, error, wakeups)

    engine, model = held_model(slow_step_s=60.0)
    failures = []
    model.runner.on_failure(failures.append)
    engine.gate.clear()
    crash = script(text="abc", crash_at_token=0)
    first = model.submit(model.request(crash))
    second = model.submit(model.request(crash))
    monkeypatch.setattr(Channel, "fail", failing)
    engine.gate.set()
    wait_until(lambda: bool(failures))
    unnotified = [stream for stream in (first, second) if stream._channel is broken[0]]
    (message,) = {first, second} - set(unnotified)
    with pytest.raises(EngineFailed):
        message.result()
    model.close()


def test_the_list_of_ids_has_a_bounded_length():
    assert listed([]) == "none"
    assert listed(map(str, range(100))).endswith(" and 84 more")
    assert watchdog.stack_of(None) == "  no Python code"
