"""The runner ``grpc`` in front of real worker processes."""

import asyncio
import json
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import PIL.Image
import pytest
from msgspec import structs

import vlmkit
from mock_model import picture, script, wait_until
from vlmkit.errors import EngineError, EngineFailed, RequestError, VlmkitError
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.runner_state import is_restarting
from vlmkit.types.constraint import JsonSchema, OneOf, Regex
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit_testing import RunnerContract
from workers import WorkerProcess, worker

pytestmark = pytest.mark.posix

FEW = ("--set", "scheduler.max_running=6", "--set", "scheduler.max_waiting=6")


def load(process: WorkerProcess, **settings) -> vlmkit.Model:
    return vlmkit.load(process.reference, runner={"use": "grpc"} | settings)


class TestGrpcRunner(RunnerContract):
    timeout_s = 300.0
    too_many = 14
    process = None  # until a worker starts, and again once a test kills it

    @pytest.fixture(scope="class")
    @classmethod
    def start(cls):
        """Return a function that starts a worker, which ends with the class."""
        with ExitStack() as stack:
            yield lambda: stack.enter_context(worker(*FEW))

    @pytest.fixture(autouse=True)
    def _worker(self, start):
        if self.process is None:
            type(self).process = start()

    def make(self) -> Runner:
        return load(self.process, give_up_s=0.0).runner

    def fail(self, runner: Runner) -> None:
        self.process.kill()
        type(self).process = None


@pytest.fixture(scope="module")
def process():
    with worker() as process:
        yield process


@pytest.fixture
def model(process):
    with load(process) as model:
        yield model
        wait_until(lambda: not num_open(model.runner))


def num_open(runner):
    stats = runner.stats()
    return stats.num_running + stats.num_waiting


def test_a_model_behaves_the_same_behind_a_worker(model):
    async def everything(model):
        return (
            (await model.agenerate("what?", images=[picture()])).text,
            [text async for text in model.astream(script(text="abc"))],
            [vector.tolist() for vector in await model.aembed(["A red house."])],
            [score.logprob for score in await model.ascore("a", ["b", "c"])],
        )

    with vlmkit.load("mock") as here:
        assert asyncio.run(everything(model)) == asyncio.run(everything(here))
        assert replace(model.facts, name="mock") == here.facts
        token_ids = [*range(64, 96)]
        assert model.runner.detokenize(token_ids) == here.runner.detokenize(token_ids)
        assert model.runner.token_bytes(65) == here.runner.token_bytes(65)
        asked = model.request("what?", images=[picture()])
        tokens = [asyncio.run(each.runner.atokenize(asked)) for each in (model, here)]
        assert tokens[0] == tokens[1]


def test_an_error_of_the_worker_keeps_its_class_and_its_text(model):
    with pytest.raises(RequestError) as found:
        model.generate("x" * 200_000)
    with vlmkit.load("mock") as here, pytest.raises(RequestError) as expected:
        here.generate("x" * 200_000)
    assert type(found.value) is type(expected.value)
    assert str(found.value) == str(expected.value)


def noise(chance, side):
    return PIL.Image.frombytes("RGB", (side, side), chance.randbytes(side * side * 3))


def random_requests(model, num):
    """Return requests that use what a request can hold."""
    chance = random.Random(28)
    schema = JsonSchema(json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for number in range(num):
        images = [
            noise(chance, chance.choice([8, 40, 700])) for _ in range(chance.choice([0, 1, 2]))
        ]
        asked = model.request(
            f"what is {number}?" if chance.random() < 0.6 else script(text=f"abc {number}"),
            images=images,
            seed=chance.randrange(2**31),
            n=chance.choice([1, 1, 2, 3]),
            temperature=chance.choice([0.0, 0.7, 1.0]),
            max_tokens=chance.randrange(1, 12),
            **({"logprobs": True, "top_logprobs": 2} if chance.random() < 0.5 else {}),
        )
        kind = chance.randrange(5)
        if kind == 0:
            rule = chance.choice([schema, OneOf(("yes", "no")), Regex("[a-c]{1,4}")])
            asked = replace(asked, constraint=rule)
        elif kind == 1:
            asked = replace(asked, tools=[tool])
        yield replace(asked, tenant=chance.choice(["", "t"]), cache_salt=chance.choice(["", "s"]))


def outcome(runner, request, *, aborts):
    """Return all that a client sees of a request, except times and what a cache held."""
    try:
        stream = runner.submit(request, lambda demand: None)
        if aborts:
            stream.abort()
            return stream.result().choices[0].finish_reason
        done = stream.result()
    except VlmkitError as error:
        return type(error), str(error)
    usage = replace(done.usage, cached_tokens=0, images=())
    return done.choices, usage, done.prompt_token_ids


def without_logprobs(result):
    """Return an outcome without numbers of the model, and these numbers."""
    if len(result) != 3:
        return result, []
    choices, usage, prompt = result
    numbers = []

    def without(value):
        numbers.append(value.logprob)
        return structs.replace(value, logprob=0.0)

    def bare(sample):
        sample = structs.replace(sample, top=tuple(map(without, sample.top)))
        return sample if sample.logprob is None else without(sample)

    choices = [replace(each, samples=tuple(map(bare, each.samples))) for each in choices]
    return (choices, usage, prompt), numbers


def assert_same(found, expected):
    """Compare two outcomes: all is equal, but numbers of the model may differ in their last bits.

    What else is in a step, and how much of a prompt was cached, changes the order of sums.
    """
    (found, numbers), (expected, expected_numbers) = map(without_logprobs, (found, expected))
    assert found == expected
    assert numbers == pytest.approx(expected_numbers, rel=1e-5, abs=1e-5)


def same_outcomes(model, here, requests):
    """Compare the answers to requests, of which every tenth is aborted."""
    num_whole = 0
    for number, request in enumerate(requests):
        aborts = number % 10 == 9
        found, expected = (outcome(each.runner, request, aborts=aborts) for each in (model, here))
        if not aborts:
            assert_same(found, expected)
        num_whole += len(found) == 3
    assert num_whole > number // 2
    wait_until(lambda: not num_open(model.runner))
    for runner in getattr(model.runner, "runners", [model.runner]):
        assert not runner._requests
        assert not runner._calls
        assert not runner._connection._alone


@pytest.mark.parametrize("num", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_requests_have_the_same_answers_as_in_one_process(model, num):
    with vlmkit.load("mock") as here:
        same_outcomes(model, here, random_requests(here, num))


def test_random_requests_to_a_trained_model_have_the_same_answers_as_in_one_process():
    pytest.importorskip("vlmkit_demo")
    with worker(model="demo") as process, load(process) as model, vlmkit.load("demo") as here:
        same_outcomes(model, here, random_requests(here, 25))


def test_a_large_request_does_not_delay_a_small_one(model):
    """It has a call of its own; both are answered."""
    image = noise(random.Random(1), 1500)
    large = [model.submit(model.request("what?", images=[image] * 4)) for _ in range(3)]
    assert model.runner._connection._alone
    assert model.generate("hello").text == "hello"
    assert len({stream.result().choices[0].text for stream in large}) == 1
    wait_until(lambda: not model.runner._connection._alone)


def test_admission_is_decided_once_and_by_the_caller(model):
    demands = []
    asked = model.request("what?", images=[picture()])
    model.runner.submit(asked, demands.append).result()
    assert len(demands) == 1
    assert demands[0].prompt_tokens > 0

    class RefusalError(Exception):
        pass

    def refuse(demand):
        raise RefusalError

    with pytest.raises(RefusalError):
        model.runner.submit(asked, refuse)
    assert model.generate("hello").text == "hello"


# The worker goes, and returns.


def endless(model):
    return model.submit(model.request(script(text="x", tokens=20_000), max_tokens=20_000))


@pytest.mark.parametrize("phase", ["idle", "waiting", "running", "unread", "deciding"])
def test_a_killed_worker_fails_its_requests_by_name_and_may_return(phase, socket_folder):
    listen = f"unix:{socket_folder}/w.sock"
    with worker(listen=listen) as first, load(first) as model:
        streams = []
        if phase == "running":
            streams = [endless(model) for _ in range(3)]
            asyncio.run(streams[0].next_chunks())
        elif phase == "unread":
            streams = [endless(model)]
            wait_until(lambda: streams[0]._channel.is_behind)
        elif phase == "waiting":
            streams = [endless(model) for _ in range(40)]
        if phase == "deciding":
            with pytest.raises(EngineError, match=f"worker {listen} is lost"):
                model.runner.submit(model.request("hello"), lambda _: first.kill())
        else:
            first.kill()
        for stream in streams:
            with pytest.raises(EngineError, match=f"worker {listen} is lost"):
                stream.result()
        wait_until(lambda: not model.runner.is_ready)
        assert is_restarting(model.runner)
        with pytest.raises(EngineError, match="is not connected"):
            model.generate("hello")
        assert not model.runner._requests
        assert not num_open(model.runner)
        with worker(listen=listen):
            wait_until(lambda: model.runner.is_ready)
            assert model.generate("hello").text == "hello"


@pytest.mark.slow
def test_kills_at_any_moment_end_every_request_exactly_once(socket_folder):
    """Requests go on while workers are killed; then all accounting is back at zero."""
    listen = f"unix:{socket_folder}/w.sock"
    chance = random.Random(5)
    is_over = threading.Event()
    ends: list[str] = []

    async def ask(model, number):
        asked = model.request(script(text="abcdefgh" * 8), n=1 + number % 2)
        try:
            stream = await model.runner.asubmit(asked, lambda demand: None)
        except VlmkitError:
            await asyncio.sleep(0.01)
            return "refused"
        num_ends, end = 0, "finished"
        try:
            async for chunk in stream:
                num_ends += chunk.finish_reason is not None
        except EngineError:
            end = "failed"
        assert (num_ends == stream.num_choices) == (end == "finished")
        return end

    async def ask_on(model, number):
        while not is_over.is_set():
            ends.append(await ask(model, number))

    async def clients(model):
        await asyncio.gather(*[ask_on(model, number) for number in range(6)])

    process = WorkerProcess(listen=listen)
    with load(process) as model:
        others = threading.Thread(target=lambda: asyncio.run(clients(model)), daemon=True)
        others.start()
        for _ in range(4):
            wait_until(lambda: model.runner.is_ready)
            ends.clear()
            wait_until(lambda: "finished" in ends)
            time.sleep(chance.random() * 0.2)
            process.kill()
            wait_until(lambda: not model.runner.is_ready)
            process = WorkerProcess(listen=listen)
        wait_until(lambda: model.runner.is_ready)
        is_over.set()
        others.join(300)
        assert not others.is_alive(), "a request never ended"
        wait_until(lambda: not num_open(model.runner))
        assert not model.runner._requests
        assert not model.runner._connection._alone
    process.close()


def test_a_worker_that_hangs_is_lost_after_the_time_for_silence():
    with worker() as process, load(process, silence_timeout_s=2.0) as model:
        stream = endless(model)
        asyncio.run(stream.next_chunks())
        process.signal(signal.SIGSTOP)
        with pytest.raises(EngineError, match="it was silent for 2 s"):
            stream.result()
        process.signal(signal.SIGCONT)
        wait_until(lambda: model.runner.is_ready)
        assert model.generate("hello").text == "hello"


def test_a_worker_that_does_not_return_in_time_fails_the_model_for_good():
    told = []
    with worker() as process, load(process, give_up_s=0.5, connect_timeout_s=0.2) as model:
        model.runner.on_failure(told.append)
        process.kill()
        wait_until(lambda: told)
        assert "did not return" in str(told[0])
        assert not is_restarting(model.runner)
        with pytest.raises(EngineFailed):
            model.generate("hello")


def test_counters_are_not_counted_twice_by_a_new_connection_to_the_same_worker(process):
    with load(process) as model:
        model.generate("hello")
        wait_until(lambda: model.runner.stats().counters["num_finished"])
        before = model.runner.stats().counters["num_finished"]
        connection = model.runner._connection
        connection._session.cancel()
        wait_until(lambda: model.runner._connection not in (None, connection))
        model.generate("hello")
        wait_until(lambda: model.runner.stats().counters["num_finished"] == before + 1)


# The wrong worker.


def test_a_worker_with_another_model_than_named_is_refused(process):
    with pytest.raises(EngineError, match="its model is 'mock', and 'demo' is expected"):
        vlmkit.load(f"{process.reference}/demo")
    with vlmkit.load(f"{process.reference}/mock") as model:
        assert model.facts.name == "mock"


def test_a_worker_with_other_files_than_expected_is_refused_with_both_digests(process):
    other = "0" * 64
    with pytest.raises(EngineError, match=f"its model is {process.digest}, and {other} is expect"):
        load(process, model_digest=other)
    load(process, model_digest=process.digest).close()


def test_a_worker_that_returns_with_another_vocabulary_is_refused_with_both_digests(
    socket_folder, caplog
):
    listen = f"unix:{socket_folder}/w.sock"
    with worker(listen=listen) as first, load(first) as model:
        peer = model.runner._peer
        expected = peer.expected.vocabulary_digest
        peer.expected.vocabulary_digest = other = "f" * 64
        first.kill()
        wait_until(lambda: not model.runner.is_ready)
        with worker(listen=listen):
            wait_until(lambda: "its vocabulary is" in caplog.text)
            assert f"its vocabulary is {expected}, and {other} is expected" in caplog.text
            assert is_restarting(model.runner)


def test_a_worker_of_another_protocol_is_refused_with_both(process, monkeypatch):
    monkeypatch.setattr("vlmkit_grpc.peer.protocol", lambda: "VLMW1-older")
    with pytest.raises(EngineError, match=r"with the protocol VLMW.*, and this is VLMW1-older"):
        load(process)


def test_an_address_without_a_worker_is_refused_in_time():
    with pytest.raises(EngineError, match=r"worker 127.0.0.1:1: it "):
        vlmkit.load("grpc://127.0.0.1:1", runner={"use": "grpc", "start_timeout_s": 0.5})


@pytest.mark.parametrize("reference", ["grpc://a:b@host", "grpc://host?x=1", "grpc://host:99999"])
def test_a_reference_that_is_no_address_is_refused(reference):
    with pytest.raises(VlmkitError, match=r"address|user, query or fragment"):
        vlmkit.load(reference)


def test_no_thread_and_no_file_stays_after_the_end(process):
    def used():
        names = [t.name for t in threading.enumerate() if t.name.startswith("vlmkit-")]
        return len(names), len([*Path("/proc/self/fd").iterdir()])

    load(process).close()
    before = used()
    for _ in range(5):
        with load(process) as model:
            assert model.generate("hello").text == "hello"
    wait_until(lambda: used() <= before)


def test_a_runner_can_be_closed_while_a_new_connection_begins(process, monkeypatch):
    begins, may_begin = threading.Event(), threading.Event()

    class SlowThread(threading.Thread):
        def start(self):
            if self.name == "vlmkit-answers":
                begins.set()
                may_begin.wait(60)
            super().start()

    model = load(process)
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as threads:
        patched.setattr(threading, "Thread", SlowThread)
        model.runner._connection._session.cancel()
        assert begins.wait(60)
        closing = threads.submit(model.close)
        wait([closing], timeout=0.5)
        may_begin.set()
        closing.result(60)


def test_a_request_that_cannot_be_sent_is_refused_by_name(model):
    with pytest.raises(RequestError, match=r"which worker .* cannot send"):
        model.runner.submit(Request(messages=[Message.of("user", "hello")], fields={"a": object()}))


def test_a_request_over_the_limit_of_bytes_is_refused_by_name(process):
    with load(process, max_message_bytes=2**20) as model:
        with pytest.raises(RequestError, match="over 1048576 bytes"):
            model.generate("what?", images=[noise(random.Random(1), 1000)])
        assert model.generate("hello").text == "hello"
