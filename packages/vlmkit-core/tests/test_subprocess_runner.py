"""The runner in a child process: a crash costs the requests that it hits, and nothing else."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import vlmkit
from mock_model import picture, script, wait_until
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.errors import (
    ConfigError,
    EngineError,
    EngineFailed,
    PluginError,
    RequestError,
    RequestQuarantined,
    VlmkitError,
    WorkerLost,
)
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.cache_index import CacheIndex
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.pipeline.forwarded_runner import ForwardedRunner
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.remote_runner import runner as remote_module
from vlmkit.running.remote_runner.messages import (
    CODEC,
    Abort,
    Accepted,
    Entry,
    Flow,
    Malformed,
    News,
    Refused,
    Submit,
)
from vlmkit.running.subprocess_runner import runner as runner_module
from vlmkit.running.subprocess_runner.child_process import ChildProcess
from vlmkit.running.subprocess_runner.runner import SubprocessRunner
from vlmkit.running.subprocess_runner.server import ChildServer
from vlmkit.settings.plugins import PluginSettings
from vlmkit.settings.subprocess import SubprocessSettings
from vlmkit.types.completion import Chunk
from vlmkit.types.media import MediaPart
from vlmkit.types.message import Message, TextPart
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit.wire.frames import Frame, read_frame, write_frame
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_testing import RunnerContract

pytestmark = pytest.mark.posix


def load(max_restarts: int = 1000, **settings: Any) -> vlmkit.Model:
    few = {"max_running": 6, "max_waiting": 6}
    own = {"use": "subprocess", "max_restarts": max_restarts}
    return vlmkit.load("mock", **({"scheduler": few, "runner": own} | settings))


def kill(runner: Runner) -> None:
    assert isinstance(runner, SubprocessRunner)
    if (pid := runner.pid) is not None:
        os.kill(pid, signal.SIGKILL)


class TestSubprocess(RunnerContract):
    timeout_s = 300.0
    too_many = 14

    def make(self) -> Runner:
        return load(max_restarts=0).runner

    def fail(self, runner: Runner) -> None:
        kill(runner)


@pytest.fixture(scope="module")
def shared():
    with load() as model:
        yield model


@pytest.fixture
def model(shared):
    wait_until(lambda: shared.runner.is_ready)
    yield shared
    wait_until(lambda: not shared.runner.stats().num_running)


class Lying(SubprocessRunner):
    """A runner whose child's messages are changed on their way."""

    change: Any = staticmethod(lambda message: message)

    def _receive(self, message, wakeups):
        super()._receive(self.change(message), wakeups)


def of_plan(kind=SubprocessRunner, observers=None, engine=None, **settings):
    """Return a runner of the mock by a plan that the loader makes."""
    with vlmkit.load("mock", runner={"use": "subprocess"}, engine=engine or {}) as model:
        plan = model.runner._child_peer._plan
    return kind(plan, SubprocessSettings(**settings), observers or {})


def test_a_model_behaves_the_same_in_a_child_process(model):
    async def everything(model):
        return (
            (await model.agenerate("what?", images=[picture()])).text,
            [text async for text in model.astream(script(text="abc"))],
            [vector.tolist() for vector in await model.aembed(["A red house."])],
            [score.logprob for score in await model.ascore("a", ["b", "c"])],
        )

    with vlmkit.load("mock") as here:
        assert asyncio.run(everything(model)) == asyncio.run(everything(here))
        assert model.facts == here.facts


def test_stages_of_loading_are_reported_by_the_child():
    stages: dict[str, list[str]] = {"auto": [], "subprocess": []}
    for use, seen in stages.items():
        vlmkit.load("mock", runner={"use": use}, on_stage=seen.append).close()
    assert [stage for stage in stages["subprocess"] if stage != "runner"] == stages["auto"]


def test_pixels_and_arrays_reach_the_child(model):
    shown = np.zeros((30, 40, 3), np.uint8)
    done = model.generate("what?", images=[shown])
    assert done.usage.image_tokens == (done.usage.images[0].num_tokens,)
    assert done.usage.images[0].transform.source_size == (30, 40)


def test_what_cannot_be_sent_is_refused_by_name(model):
    class Sound:
        digest, num_bytes = b"", 1

    request = Request(messages=[Message("user", (MediaPart("audio", Sound()), TextPart("?")))])
    with pytest.raises(
        RequestError, match="holds a value of type MediaPart, which runner 'subproc"
    ):
        model.runner.submit(request)
    assert model.generate("hello").text == "hello"


def test_a_crash_of_the_engine_fails_its_requests_once_and_the_child_is_restarted(model):
    doomed = [model.submit(model.request(script(text="x", tokens=4000))) for _ in range(3)]
    pid = model.runner.pid
    with pytest.raises(EngineError):
        model.generate(script(text="abc", crash_at_token=1))
    for stream in doomed:
        with pytest.raises(EngineError):
            stream.result()
    wait_until(lambda: model.runner.is_ready and model.runner.pid != pid)
    assert model.generate("hello").text == "hello"


def test_a_request_that_crashes_the_child_twice_is_refused_and_those_beside_it_are_answered(model):
    deadly = script(text="deadly", crash_at_token=1)
    for number in range(2):
        pid = model.runner.pid
        beside = model.submit(model.request(script(text=f"beside {number}", tokens=4000)))
        with pytest.raises(EngineError):
            model.generate(deadly)
        with pytest.raises(EngineError):
            beside.result()
        wait_until(lambda pid=pid: model.runner.is_ready and model.runner.pid != pid)
    pid = model.runner.pid
    with pytest.raises(RequestQuarantined):
        model.generate(deadly)
    assert model.generate(script(text="beside 0", tokens=20)).text.startswith("beside 0")
    assert model.runner.pid == pid


def test_while_the_child_is_restarted_requests_are_refused_and_others_are_told(model):
    kill(model.runner)
    wait_until(lambda: not model.runner.is_ready)
    with pytest.raises(EngineError, match="being restarted"):
        model.generate("hello")
    wait_until(lambda: model.runner.is_ready)
    assert model.generate("hello").text == "hello"


def test_counters_never_fall(model):
    model.generate("hello")
    wait_until(lambda: model.runner.stats().counters["num_finished"])
    before = model.runner.stats().counters["num_finished"]
    kill(model.runner)
    wait_until(lambda: not model.runner.is_ready)
    assert model.runner.stats().counters["num_finished"] == before
    wait_until(lambda: model.runner.is_ready)
    model.generate("hello")
    wait_until(lambda: model.runner.stats().counters["num_finished"] == before + 1)


def test_an_accepted_request_is_counted_before_the_next_state_of_the_child(model):
    """Otherwise a server or replicas would send their next request to the wrong engine."""
    wait_until(lambda: not num_open(model.runner))
    for number in range(1, 4):
        stream = model.submit(model.request(script(text="x", tokens=4000), n=2))
        assert num_open(model.runner) == 2
        if number == 2:
            next(iter(stream))
            assert model.runner.stats().num_running == 2
        stream.abort()
        wait_until(lambda: not num_open(model.runner))


def num_open(runner: Runner) -> int:
    stats = runner.stats()
    return stats.num_running + stats.num_waiting


def test_an_unread_answer_does_not_grow(model):
    """Neither here nor in the child."""
    stream = model.submit(model.request(script(text="x", tokens=20_000), max_tokens=20_000))
    bound = model.facts.bounds.max_unread_tokens
    seen = -1
    while seen != (seen := model.runner.stats().counters["num_tokens_sampled"]):
        time.sleep(0.5)
    # How many come before the child pauses depends on what else the machine does.
    assert bound < len(stream._channel._chunks) < 10_000
    assert len(stream.result().choices[0].samples) == 20_000


@pytest.mark.parametrize("num", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_ends_every_request_exactly_once(num):
    """Requests go on while the child is killed; then all accounting is back at zero."""
    chance = random.Random(3)
    ends: list[str] = []
    is_over = threading.Event()
    open_streams: set[int] = set()

    async def ask(model, number):
        asked = model.request(script(text=f"{number} " + "abcdefgh" * 8), n=1 + number % 2)
        try:
            stream = await model.runner.asubmit(asked, lambda demand: None)
        except VlmkitError as error:
            return f"refused: {type(error).__name__}"
        open_streams.add(number)
        num_ends, end = 0, "finished"
        try:
            async for chunk in stream:
                num_ends += chunk.finish_reason is not None
        except EngineError:
            end = "failed"
        open_streams.remove(number)
        is_whole = num_ends == stream.num_choices
        assert is_whole == (end == "finished"), "an answer is not whole, and has no error"
        return end

    async def ask_on(model, first):
        number = first
        while not is_over.is_set():
            ends.append(await ask(model, number))
            number += 10
            if ends[-1].startswith("refused"):
                await asyncio.sleep(0.01)

    async def clients(model):
        await asyncio.gather(*[ask_on(model, first) for first in range(6)])

    own = {"use": "subprocess", "max_restarts": 10**6, "stable_s": 0.001}
    with vlmkit.load("mock", runner=own) as model:
        others = threading.Thread(target=lambda: asyncio.run(clients(model)), daemon=True)
        others.start()
        for _ in range(num):
            wait_until(lambda: model.runner.is_ready)
            ends.clear()
            wait_until(lambda: "finished" in ends)
            time.sleep(chance.random() * 0.1)
            kill(model.runner)
            wait_until(lambda: any(end != "finished" for end in ends))
        is_over.set()
        others.join(600)
        assert not others.is_alive(), "a request never ended"
        assert not open_streams
        wait_until(lambda: model.runner.is_ready)
        assert not model.runner._requests
        assert not model.runner._calls
        wait_until(lambda: not model.runner.stats().num_running + model.runner.stats().num_waiting)
        assert model.generate("hello").text == "hello"


# A child that cannot be trusted.


def test_a_child_that_ends_while_it_builds_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("vlmkit.running.subprocess_runner.child_process.MODULE", "this")
    with pytest.raises(VlmkitError, match="runner 'subprocess': its process ended before"):
        load()


def test_a_child_that_takes_too_long_to_build_is_refused_and_gone(monkeypatch):
    with pytest.raises(EngineError, match="ended before the model was built: signal SIGKILL"):
        of_plan(start_timeout_s=0.01)


def test_a_child_that_cannot_build_its_model_raises_the_error_of_the_component():
    with pytest.raises(ConfigError, match="capacity_tokens"):
        load(engine={"use": "mock", "capacity_tokens": 1, "max_sequence_tokens": 100})


def test_a_model_without_files_is_refused():
    runners = load_plugins(PluginSettings()).runners
    with pytest.raises(VlmkitError, match="runner 'subprocess' needs a model whose files"):
        runners.build("subprocess", {}, BuildContext("far://x"))


def test_a_child_with_other_facts_after_a_restart_fails_the_runner_by_name(monkeypatch):
    told: list[BaseException] = []
    with of_plan() as runner:
        runner.on_failure(told.append)
        started = ChildProcess.started

        def other(self, timeout_s, on_stage):
            found = started(self, timeout_s, on_stage)
            return replace(found, facts=replace(found.facts, name="another"))

        monkeypatch.setattr(ChildProcess, "started", other)
        kill(runner)
        wait_until(lambda: told)
        assert "runner 'subprocess': the facts of its process changed" in str(told[0])
        assert not runner.is_ready
        with pytest.raises(EngineFailed):
            runner.submit(Request(text="x"))


def test_a_child_that_ends_too_often_fails_the_runner_by_name(monkeypatch):
    monkeypatch.setattr(runner_module, "MIN_PAUSE_S", 0.001)
    told: list[BaseException] = []
    with of_plan(max_restarts=2) as runner:
        runner.on_failure(told.append)
        monkeypatch.setattr("vlmkit.running.subprocess_runner.child_process.MODULE", "this")
        kill(runner)
        wait_until(lambda: told)
        assert "runner 'subprocess': its process ended too often" in str(told[0])


def changed(message, change):
    """Return news whose entries with a usage are changed."""
    if not isinstance(message, News):
        return message
    return News(
        tuple(change(each) if isinstance(each, Entry) else each for each in message.entries)
    )


def more_tokens(message):
    def change(entry):
        num_tokens = entry.usage.completion_tokens + 1
        return replace_struct(entry, usage=replace(entry.usage, completion_tokens=num_tokens))

    return changed(message, change)


def other_choice(message):
    def change(entry):
        chunks = tuple(replace_struct(chunk, index=7) for chunk in entry.chunks)
        return replace_struct(entry, chunks=chunks)

    return changed(message, change)


def replace_struct(value, **changes):
    return msgspec.structs.replace(value, **changes)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (more_tokens, "its stream has 3 tokens, and its usage states 4"),
        (other_choice, "its stream has a choice that was not requested"),
    ],
)
def test_a_stream_that_contradicts_itself_fails_by_name(change, what):
    with of_plan(Lying) as runner:
        runner.change = change
        asked = vlmkit.Model(runner).request(script(text="abc"), max_tokens=3)
        with pytest.raises(EngineError, match=f"runner 'subprocess': {what}"):
            runner.submit(asked).result()
        assert not runner._requests


def test_a_message_that_is_none_costs_the_child_and_not_this_process(model):
    pid = model.runner.pid
    model.runner._connection._pending.append(Frame(b"\x91\xa4what"))
    model.runner._connection._has_pending.put(True)
    wait_until(lambda: model.runner.is_ready and model.runner.pid != pid)
    assert model.generate("hello").text == "hello"


class GivenUpLate(Future):
    """The future of a call that is given up right after the runner has looked at it."""

    def cancelled(self):
        return False


@pytest.mark.parametrize("token_id", [65, 10**6], ids=["result", "error"])
def test_a_call_that_is_given_up_while_its_answer_arrives_does_not_end_the_child(
    model, monkeypatch, token_id
):
    monkeypatch.setattr(remote_module, "Future", GivenUpLate)
    pid = model.runner.pid

    async def give_up():
        call = asyncio.ensure_future(model.runner.adetokenize([token_id]))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()

    asyncio.run(give_up())
    monkeypatch.undo()
    assert model.runner.detokenize([65]) == "A"
    assert model.runner.pid == pid


# What is left.


class Recorder(Observer):
    def __init__(self):
        self.events = []

    def accepted(self, request, at_s):
        self.events.append(("accepted", request.tenant))

    def finished(self, request, end, at_s):
        self.events.append(("finished", end.usage.completion_tokens))

    def failed(self, request, error, at_s):
        self.events.append(("failed", type(error)))

    def step(self, step, at_s):
        self.events.append(("step", step.num_sampled))

    def close(self):
        self.events.append(("closed", None))


def test_observers_of_this_process_see_requests_and_steps():
    seen = Recorder()
    with of_plan(observers={"seen": seen}) as runner:
        model = vlmkit.Model(runner)
        request = replace(model.request(script(text="abc"), max_tokens=3), tenant="t")
        runner.submit(request).result()
        wait_until(lambda: ("finished", 3) in seen.events)
        assert ("accepted", "t") in seen.events
        wait_until(lambda: sum(n for kind, n in seen.events if kind == "step") == 3)
        running = runner.submit(model.request(script(text="x", tokens=4000)))
        kill(runner)
        with pytest.raises(EngineError):
            running.result()
        wait_until(lambda: ("failed", WorkerLost) in seen.events)
    assert seen.events[-1] == ("closed", None)


class Indexing(Observer):
    """Follows the cache of an engine."""

    def __init__(self):
        self.index = CacheIndex()
        self.num_removed = 0

    def blocks(self, change, at_s):
        self.num_removed += len(change.removed)
        self.index.apply(change)

    def sorted_tokens(self):
        """Return the tokens of each block; keys differ between pipelines with other encoders."""
        return sorted(block.tokens for block in self.index.blocks.values())


def test_observers_of_this_process_follow_the_cache_of_the_child_until_it_ends():
    small = {"capacity_tokens": 512, "max_sequence_tokens": 256, "text": "abc"}
    local, remote = Indexing(), Indexing()
    engine = MockEngine(MockEngineSettings(**small))
    runner = of_plan(observers={"index": remote}, engine=small)
    pipeline = Pipeline(tokenizer=MockTokenizer(), engine=engine, observers={"index": local})
    with runner, pipeline:
        for number in range(40):
            message = Message.of("user", str(number % 7) * 70 + str(number) * 30)
            tenant = ("", "other")[number % 2]
            for each in (pipeline, runner):
                each.submit(Request(messages=[message], tenant=tenant)).result()
        wait_until(lambda: local.index.blocks.keys() == engine._pool._block_of.keys())
        wait_until(lambda: remote.sorted_tokens() == local.sorted_tokens())
        assert min(remote.num_removed, local.num_removed) > 10
        kill(runner)
        wait_until(lambda: not remote.index.blocks)
        wait_until(lambda: runner.is_ready)
        runner.submit(Request(messages=[message])).result()
        wait_until(lambda: remote.index.blocks)
    wait_until(lambda: not remote.index.blocks)


PARENT = """
import time, vlmkit
model = vlmkit.load("mock", runner={"use": "subprocess"})
print(model.runner.pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_ends_when_its_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    wait_until(lambda: not is_alive(pid))


def test_a_secret_of_the_environment_does_not_reach_the_child(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    with of_plan() as runner:
        environment = Path(f"/proc/{runner.pid}/environ").read_text()
        assert "SOME_API_KEY" not in environment
        assert "PATH=" in environment


def test_a_number_of_restarts_below_zero_is_refused():
    with pytest.raises((ConfigError, PluginError), match="max_restarts"):
        load(max_restarts=-1)


WRONG_VALUES: list[dict[str, Any]] = [
    {"params": SamplingParams(max_tokens="x")},  # type: ignore[arg-type]
    {"params": SamplingParams(logit_bias=3)},  # type: ignore[arg-type]
    {"tenant": 5},
    {"fields": {"a": object()}},
    {"cache_salt": b"x"},
    {"continuations": [3]},
    {"tools": [{"a": object()}]},
    {"messages": [Message.of("user", "hello", [picture(1, 1) for _ in range(4097)])]},
]


@pytest.mark.parametrize("wrong", WRONG_VALUES, ids=lambda wrong: next(iter(wrong)))
def test_a_value_that_cannot_be_sent_fails_its_own_request(wrong: dict[str, Any]) -> None:
    with load(max_restarts=0) as model:
        other = model.runner.submit(
            Request(messages=[Message.of("user", script(text="x", tokens=20, latency_s=0.01))])
        )
        with pytest.raises(VlmkitError):
            model.runner.submit(
                Request(**({"messages": [Message.of("user", "hello")]} | wrong))
            ).result()
        assert other.result().text == "x" * 20
        assert model.runner.is_ready


def served(runner: Runner, *messages: object) -> list[Any]:
    """Return what the server of a child answers to messages until two requests have ended."""
    (requests_there, requests), (answers, answers_there) = os.pipe(), os.pipe()
    with (
        os.fdopen(requests, "wb") as to_server,
        os.fdopen(answers, "rb") as from_server,
        os.fdopen(requests_there, "rb", buffering=0) as read,
        os.fdopen(answers_there, "wb") as written,
    ):
        server = ChildServer(runner, read, written)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
        thread.start()
        for message in messages:
            write_frame(to_server, CODEC.encode(message))
        found: list[Any] = []
        while sum(map(is_end, found)) < 2:
            message = CODEC.decode(read_frame(from_server))
            found += message.entries if isinstance(message, News) else [message]
        to_server.close()
        thread.join(60)
        assert not thread.is_alive()
    return found


def is_end(message: object) -> bool:
    if isinstance(message, Entry):
        return any(chunk.finish_reason is not None for chunk in message.chunks)
    return isinstance(message, Refused | Malformed)


class OddStream:
    """A stream with a result of a type that cannot be sent."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def next_chunks(self) -> list[Chunk]:
        chunks = await self._stream.next_chunks()
        return [replace_struct(each, embedding=np.array(["text"])) for each in chunks]


class OddRunner(ForwardedRunner):
    """A runner with odd answers for one tenant."""

    async def asubmit(self, request: Request, admit: Any = None) -> Any:
        stream = await self._runner.asubmit(request, admit)
        return OddStream(stream) if request.tenant == "odd" else stream


def test_an_answer_that_cannot_be_sent_fails_its_own_request() -> None:
    with vlmkit.load("mock") as model:
        asked = model.request(script(text="abc"), max_tokens=3)
        odd = Submit(1, replace(asked, tenant="odd"), asks_admission=False)
        found = served(OddRunner(model.runner), odd, Submit(2, asked, asks_admission=False))
        (refused,) = [each for each in found if isinstance(each, Refused)]
        assert refused.number == 1
        assert isinstance(refused.error, EngineError)
        samples = [len(chunk.samples) for each in found for chunk in chunks_of(each, number=2)]
        assert sum(samples) == 3


def chunks_of(message: Any, number: int) -> list[Any]:
    if getattr(message, "number", None) != number or isinstance(message, Accepted):
        return []
    return list(message.chunks) if isinstance(message, Entry) else [message]


def test_a_request_whose_reader_is_behind_ends_when_the_runner_closes() -> None:
    with load() as model:
        endless = script(text="x", tokens=30_000)
        stream: Any = model.runner.submit(
            Request(
                messages=[Message.of("user", endless)], params=SamplingParams(max_tokens=30_000)
            )
        )
        wait_until(lambda: stream._channel.is_behind)
        model.close()
        assert stream.result().choices[0].finish_reason == "abort"


def test_a_pause_that_crosses_an_abort_does_not_keep_the_request_open() -> None:
    with load() as model:
        runner: Any = model.runner
        endless = script(text="x", tokens=30_000)
        stream = runner.submit(
            Request(
                messages=[Message.of("user", endless)], params=SamplingParams(max_tokens=30_000)
            )
        )
        wait_until(lambda: stream._channel.is_behind)
        (number,) = runner._requests
        runner._connection.send(Abort(number))
        runner._connection.send(Flow(number, is_paused=True))
        wait_until(lambda: not runner._requests)
        assert stream.result().choices[0].finish_reason == "abort"
