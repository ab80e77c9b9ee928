"""Observers get each event once and in order, and cannot delay or break a request."""

import json
import logging
import threading

import pytest

from mock_model import script, wait_until
from vlmkit.assembly.load import assemble
from vlmkit.config import ModelEntry, read_layers
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.providers import check_components
from vlmkit.config.schema import json_schema
from vlmkit.errors import ConfigError, EngineError, QueueFull, UnknownPlugin
from vlmkit.interfaces.observer import Observer
from vlmkit.model import Model
from vlmkit.running.observers import dispatch as running_observers
from vlmkit.running.observers.builtin import Counters, RequestLog
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.plugins import PluginSettings
from vlmkit.settings.request_log import RequestLogSettings
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer


class RecordingObserver(Observer):
    """Records every event."""

    def __init__(self):
        self.recorded = []
        self.is_closed = False

    def accepted(self, request, at_s):
        self.recorded.append(("accepted", request.id))

    def first_token(self, request, at_s):
        self.recorded.append(("first_token", request.id))

    def tokens(self, request, chunk, at_s):
        self.recorded.append(("tokens", request.id, chunk.text))

    def finished(self, request, end, at_s):
        self.recorded.append(("finished", request.id, end.reasons))
        self.end = end

    def failed(self, request, error, at_s):
        self.recorded.append(("failed", request.id, str(error)))

    def step(self, step, at_s):
        self.recorded.append(("step", step.num_tokens, step.num_sampled))

    def close(self):
        self.is_closed = True

    def of(self, name):
        return [event for event in self.recorded if event[1] == name]


def serving(observers, engine=None, **options):
    return Model(
        Pipeline(
            tokenizer=MockTokenizer(), engine=engine or MockEngine(), observers=observers, **options
        )
    )


def make_request(text="abc", name="one", tokens=None, latency_s=0.0, **params):
    fields = {"text": text, "latency_s": latency_s}
    fields |= {} if tokens is None else {"tokens": tokens}
    messages = [Message.of("user", script(**fields))]
    return Request(messages=messages, params=SamplingParams(**params), id=name)


def test_observers_get_all_events_of_a_request_in_order():
    recorder = RecordingObserver()
    with serving({"notes": recorder}) as model:
        done = model.submit(make_request(text="abc")).result()
    first, second, *pieces, last = recorder.of("one")
    assert (first, second) == (("accepted", "one"), ("first_token", "one"))
    assert "".join(piece[2] for piece in pieces) == done.text == "abc"
    assert last == ("finished", "one", ("stop",))
    assert (recorder.end.usage, recorder.end.timings) == (done.usage, done.timings)


def test_step_events_add_up_to_the_counters_of_the_loop():
    recorder = RecordingObserver()
    with serving({"notes": recorder}) as model:
        model.submit(make_request()).result()
        wait_until(lambda: model.runner._loop.num_jobs == 0)
        counters = model.stats().counters
    steps = [event for event in recorder.recorded if event[0] == "step"]
    assert len(steps) == counters["num_steps"]
    assert sum(step[1] for step in steps) == counters["num_tokens_computed"]
    assert sum(step[2] for step in steps) == counters["num_tokens_sampled"]


def test_a_request_with_several_choices_has_one_end_event():
    recorder = RecordingObserver()
    with serving({"notes": recorder}) as model:
        model.submit(make_request(n=3, seed=1)).result()
    kinds = [event[0] for event in recorder.of("one")]
    assert [kinds.count(kind) for kind in ("accepted", "first_token", "finished")] == [1, 1, 1]
    assert recorder.of("one")[-1] == ("finished", "one", ("stop",) * 3)


def test_an_aborted_request_is_finished_and_a_broken_one_failed():
    class FailsOnLongRequests(MockEngine):
        def forward(self, items):
            if any(len(item.sequence) > 200 for item in items):
                raise RuntimeError("of this one")
            return super().forward(items)

    recorder = RecordingObserver()
    with serving({"notes": recorder}, engine=FailsOnLongRequests()) as model:
        stream = model.submit(
            make_request(name="aborted", tokens=5000, max_tokens=100, latency_s=0.05)
        )
        next(iter(stream))
        stream.abort()
        with pytest.raises(EngineError):
            model.submit(make_request("x" * 300, name="broken")).result()
    ends = [event[0::2] for event in recorder.recorded if event[0] in ("finished", "failed")]
    assert sorted(ends) == [
        ("failed", "the engine failed on this request"),
        ("finished", ("abort",)),
    ]


def test_a_request_that_the_scheduler_refuses_fails_without_being_accepted():
    class FullScheduler(ContinuousScheduler):
        def add(self, sequence):
            raise QueueFull("no room")

    recorder = RecordingObserver()
    with serving({"notes": recorder}, scheduler=FullScheduler()) as model, pytest.raises(QueueFull):
        model.submit(make_request()).result()
    assert recorder.recorded == [("failed", "one", "no room")]


def test_only_events_that_an_observer_handles_are_queued(monkeypatch):
    queued = []
    note = running_observers._ObserverThread.enqueue

    def recording(self, event, *given):
        queued.append(event)
        note(self, event, *given)

    monkeypatch.setattr(running_observers._ObserverThread, "enqueue", recording)
    with serving({"counters": Counters()}) as model:
        model.submit(make_request()).result()
    assert queued == ["accepted", "finished"]


def test_without_observers_no_event_is_queued():
    before = threading.active_count()
    observers = ObserverDispatch({})
    assert not any(map(observers.handles, running_observers.EVENTS))
    assert threading.active_count() == before
    with serving({}) as model:
        assert model.runner._observers is None
        assert model.stats().observed == {}


def test_an_observer_that_raises_is_disabled_and_logged_once(caplog):
    class RaisingObserver(RecordingObserver):
        def tokens(self, request, chunk, at_s):
            super().tokens(request, chunk, at_s)
            raise RuntimeError("a bug")

        def stats(self):
            raise RuntimeError("another bug")

    bad, good = RaisingObserver(), RecordingObserver()
    with serving({"bad": bad, "good": good}) as model:
        for name in ("one", "two"):
            assert model.submit(make_request(name=name)).result().text == "abc"
        wait_until(lambda: bad.is_closed)
        assert model.submit(make_request(name="three")).result().text == "abc"
        assert model.stats().observed["bad"] == {"num_events_lost": 0}
    assert [event[0] for event in bad.recorded].count("tokens") == 1
    assert good.of("three")[-1] == ("finished", "three", ("stop",))
    failures = [r for r in caplog.records if "switched off" in r.getMessage()]
    assert [(r.getMessage(), str(r.exc_info[1])) for r in failures] == [
        ("observer 'bad' failed and is switched off", "a bug")
    ]


def test_a_blocked_observer_drops_events_and_delays_no_request(monkeypatch, caplog):
    monkeypatch.setattr(running_observers, "MAX_QUEUED_EVENTS", 60)
    go_on = threading.Event()

    class BlockedObserver(RecordingObserver):
        def accepted(self, request, at_s):
            go_on.wait()
            super().accepted(request, at_s)

    blocked, good = BlockedObserver(), Counters()
    with serving({"stuck": blocked, "good": good}) as model:
        for i in range(20):
            assert model.submit(make_request(name=f"{i}")).result().text == "abc"
        lost = model.stats().observed["stuck"]["num_events_lost"]
        wait_until(lambda: good.stats().get("num_finished") == 20)
        go_on.set()
    assert lost > 0
    assert len(blocked.recorded) <= 62  # end events are not limited by the queue
    names = [name for kind, name, *_ in blocked.recorded if kind == "accepted"]
    assert 1 < len(names) < 20
    assert all(blocked.of(name)[-1][0] == "finished" for name in names)
    assert blocked.is_closed
    assert sum("is too slow" in record.getMessage() for record in caplog.records) == 1


def test_an_observer_that_never_returns_does_not_block_close(monkeypatch, caplog):
    monkeypatch.setattr(running_observers, "CLOSE_S", 0.01)
    go_on = threading.Event()

    class BlockedObserver(Observer):
        def accepted(self, request, at_s):
            go_on.wait()

    with serving({"stuck": BlockedObserver()}) as model:
        model.submit(make_request()).result()
        wait_until(lambda: model.stats().observed["stuck"])
    assert "observer 'stuck' did not close in time" in caplog.text
    go_on.set()


def test_an_observer_gets_its_last_events_before_it_is_closed():
    recorder = RecordingObserver()
    with serving({"notes": recorder}) as model:
        model.submit(make_request())
    assert recorder.recorded[-1][0] == "finished"
    assert recorder.is_closed


# Built-in observers.


def test_the_log_has_one_json_line_per_event_and_no_text_of_requests(tmp_path):
    file = tmp_path / "requests.jsonl"
    log = RequestLog(RequestLogSettings(file=str(file), steps=True))
    with serving({"log": log}, name="m") as model:
        done = model.submit(make_request(text="secret", name='a "b"\n')).result()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    events = [line for line in lines if line["event"] != "step"]
    assert [line["event"] for line in events] == ["accepted", "first_token", "finished"]
    assert all((line["request"], line["model"]) == ('a "b"\n', "m") for line in events)
    assert events[2]["reasons"] == ["stop"]
    assert events[2]["completion_tokens"] == done.usage.completion_tokens
    assert sum(line.get("num_sampled", 0) for line in lines) == done.usage.completion_tokens
    assert "secret" not in file.read_text()


def test_the_log_without_a_file_goes_to_its_logger(caplog):
    caplog.set_level(logging.INFO, "vlmkit.requests")
    with serving({"log": RequestLog()}) as model:
        model.submit(make_request()).result()
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "vlmkit.requests"]
    assert [line["event"] for line in lines] == ["accepted", "first_token", "finished"]


def test_a_log_file_that_cannot_be_written_is_an_error_at_start(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written") as error:
        RequestLog(RequestLogSettings(file=str(tmp_path / "no" / "log")))
    assert error.value.hint == "name another one in observers.log.file"


def test_counters_are_sums_shown_in_the_statistics():
    with serving({"counters": Counters()}) as model:
        done = [
            model.submit(make_request(name=name, n=2, seed=1)).result() for name in ("one", "two")
        ]
        wait_until(lambda: model.stats().observed["counters"].get("num_finished") == 2)
        numbers = model.stats().observed["counters"]
    assert numbers["num_accepted"] == 2
    assert numbers["num_choices_stop"] == 4
    for name in ("prompt_tokens", "completion_tokens"):
        assert numbers[f"num_{name}"] == sum(getattr(one.usage, name) for one in done)
    assert numbers["decode_s"] == pytest.approx(sum(one.timings.decode_s for one in done))


# The config section.


def settings_of(*assignments):
    return read_layers(environ={}, assignments=assignments).read()


def test_each_pipeline_has_the_observers_that_the_config_names(tmp_path):
    file = tmp_path / "requests.jsonl"
    config = settings_of('observers.use=["log", "counters"]', f"observers.log.file={file}").config
    plugins = load_plugins(config.plugins, environ={})
    with Model(assemble(ModelEntry(model="mock"), config, plugins)) as model:
        model.generate("hello", max_tokens=2)
        assert set(model.stats().observed) == {"log", "counters"}
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("assignments", "kind", "message", "hint"),
    [
        (
            ['observers.use=["lgo"]'],
            UnknownPlugin,
            "no installed plugin provides observer 'lgo'",
            "did you mean 'log'?",
        ),
        (
            ["observers.lgo.file=x"],
            UnknownPlugin,
            "no installed plugin provides observer 'lgo'",
            "did you mean 'log'?",
        ),
        (
            ["observers.log.fiel=x"],
            ConfigError,
            "observer 'log' has no setting 'fiel'",
            "did you mean 'file'?",
        ),
        (
            ["observers.file=x"],
            ConfigError,
            "'observers.file' is no setting (--set observers.file)",
            "settings of a provider stand in [observers.NAME]",
        ),
        (
            ["observers=log"],
            ConfigError,
            "'observers' is a section, not one value (--set observers)",
            "did you mean 'observers.use'?",
        ),
    ],
)
def test_a_mistake_in_the_section_is_reported(assignments, kind, message, hint):
    plugins = load_plugins(PluginSettings(), environ={})
    with pytest.raises(kind) as error:
        check_components(settings_of(*assignments).config, plugins)
    assert (str(error.value), error.value.hint) == (message, hint)


def test_the_schema_lists_the_observers_and_their_settings():
    plugins = load_plugins(PluginSettings(), environ={})
    section = json_schema(plugins)["properties"]["observers"]
    assert set(section["properties"]["use"]["items"]["enum"]) == {"auto", "counters", "log"}
    assert section["properties"]["log"]["properties"]["steps"]["description"]
    assert section["additionalProperties"] is False
