"""Real workers in front of strange, slow and hostile gateways."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

import vlmkit
from mock_model import script, wait_until
from vlmkit.errors import ConfigError, EngineError
from vlmkit.running.remote_runner.messages import (
    Abort,
    Close,
    Demanded,
    Drain,
    Flow,
    MessageReader,
    News,
    Refused,
    State,
    Submit,
    message_parts,
)
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_grpc.addresses import listen_address, worker_reference
from vlmkit_grpc.protocol.generate import generate
from vlmkit_grpc.protocol.worker_pb2 import (
    DescribeRequest,
    DrainRequest,
    FactsRequest,
    Part,
    Prompt,
    PromptPart,
)
from vlmkit_grpc.protocol.worker_pb2_grpc import WorkerStub
from vlmkit_grpc.sent_prompts import MAX_BYTES
from workers import worker

pytestmark = pytest.mark.posix

SECRET = "a-secret-of-32-letters-and-digits"
MANY_BYTES = 2**28


def load(process, **settings):
    return vlmkit.load(process.reference, runner={"use": "grpc"} | settings)


def channel(process, *options):
    return grpc.insecure_channel(process.address, options)


def frame(message):
    return b"".join(message_parts(message, MANY_BYTES))


def submit(number=1, *, text="hello", asks=False, tokens=None, **params):
    params = None if tokens is None else SamplingParams(max_tokens=tokens, **params)
    return Submit(number, Request(messages=[Message.of("user", text)], params=params), asks)


def held(*messages):
    """Return the parts of a call that sends messages and stays open, and what ends it."""
    is_over = threading.Event()

    def parts():
        for message in messages:
            if isinstance(message, Part):
                yield message
            else:
                yield Part(content=message if isinstance(message, bytes) else frame(message))
        is_over.wait(120)

    return parts(), is_over.set


def received(call):
    """Return all messages of a call, without its state, and the status with which it ended."""
    reader, found = MessageReader(MANY_BYTES), []
    try:
        for part in call:
            found += [each for each in reader.feed(part.content) if not isinstance(each, State)]
    except grpc.RpcError as error:
        return found, error.code()
    return found, grpc.StatusCode.OK


@pytest.fixture(scope="module")
def strict():
    """A worker with short times and low limits."""
    limits = {
        "decision_timeout_s": 0.5,
        "stall_timeout_s": 1.0,
        "max_message_bytes": 2**20,
        "max_streams": 6,
        "max_open_requests": 4,
    }
    given = chain(*[("--set", f"worker.{name}={value}") for name, value in limits.items()])
    with worker(*given) as process:
        yield process
        wait_until(lambda: process.is_idle)


def test_the_committed_code_is_what_the_tools_make_of_the_services(tmp_path):
    generate(tmp_path)
    made = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(made) == 9
    source = Path(sys.modules["vlmkit_grpc"].__file__).parent
    for path in made:
        committed = source / path.relative_to(tmp_path / "vlmkit_grpc")
        assert path.read_text() == committed.read_text(), path.name


# Who may call.


@pytest.mark.parametrize(
    ("given", "sent", "is_right"),
    [
        (SECRET, SECRET, True),
        (SECRET, SECRET[:-1] + "x", False),
        (SECRET, None, False),
    ],
)
def test_only_a_gateway_with_the_secret_is_answered(given, sent, is_right, tmp_path):
    file = tmp_path / "secret"
    file.write_text(given + "\n")
    with worker("--set", f"worker.secret_file={file}") as process:
        if is_right:
            with load(process, secret=sent) as model:
                assert model.generate("hello").text == "hello"
        else:
            with pytest.raises(EngineError, match="it refuses the secret"):
                load(process, **({} if sent is None else {"secret": sent}))
        with channel(process) as calls:
            stub, health = WorkerStub(calls), health_pb2_grpc.HealthStub(calls)
            for call in (
                lambda: stub.Describe(DescribeRequest()),
                lambda: list(stub.Facts(FactsRequest())),
                lambda: list(stub.Session(held(submit())[0])),
                lambda: list(stub.Answer(held(submit())[0])),
                lambda: stub.Drain(DrainRequest()),
                lambda: list(health.Watch(health_pb2.HealthCheckRequest())),
            ):
                with pytest.raises(grpc.RpcError) as found:
                    call()
                assert found.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert health.Check(health_pb2.HealthCheckRequest()).status == 1
        assert given not in "".join(process.lines)


@pytest.fixture
def certificates(tmp_path):
    """Files of an authority, of a worker, and of a gateway."""
    authority, other = trustme.CA(), trustme.CA()
    for name, ca in (("ca", authority), ("other_ca", other)):
        ca.cert_pem.write_to_path(tmp_path / f"{name}.pem")
    for name, ca in (("worker", authority), ("gateway", authority), ("stranger", other)):
        ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            tmp_path / f"{name}.pem"
        )
    return {path.stem: str(path) for path in tmp_path.glob("*.pem")}


def test_tls_protects_the_connection_and_may_ask_for_certificates_of_gateways(certificates):
    given = ("--set", f"worker.tls_certificate={certificates['worker']}")
    asks = ("--set", f"worker.tls_client_ca={certificates['ca']}")
    ca, quick = {"tls_ca": certificates["ca"]}, {"start_timeout_s": 2.0}
    with worker(*given) as process:
        with load(process, **ca) as model:
            assert model.generate("hello").text == "hello"
        for wrong in ({}, {"tls_ca": certificates["other_ca"]}):
            with pytest.raises(EngineError, match=r"worker 127.0.0.1:\d+: it "):
                load(process, **wrong, **quick)
    with worker(*given, *asks) as process:
        with load(process, **ca, tls_certificate=certificates["gateway"]) as model:
            assert model.generate("hello").text == "hello"
        for wrong in ({}, {"tls_certificate": certificates["stranger"]}):
            with pytest.raises(EngineError, match=r"worker 127.0.0.1:\d+: it "):
                load(process, **ca, **wrong, **quick)


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "worker", "mock", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


def test_an_address_of_other_machines_needs_a_secret_a_certificate_or_consent(certificates):
    code, text = command("--listen", "0.0.0.0:0")
    assert code
    assert "can be reached by other machines, and no secret is required" in text
    assert "worker.allow_public_without_secret" in text
    for allowed in (
        [f"secret={SECRET}"],
        ["allow_public_without_secret=true"],
        [
            f"tls_certificate={certificates['worker']}",
            f"tls_client_ca={certificates['ca']}",
        ],
    ):
        sets = chain(*[("--set", f"worker.{each}") for each in allowed])
        with worker(*sets, "--set", "worker.num_renderers=0", listen="0.0.0.0:0"):
            pass


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("tls_client_ca=/none", "tls_certificate is not set"),
        ("tls_certificate=/none", "tls_certificate cannot be read"),
        ("secret_file=/none", "secret_file cannot be read"),
        ("secret=short", "secret"),
        ("listen=nowhere:port", "is no address"),
    ],
)
def test_a_wrong_setting_is_refused_before_the_model_is_loaded(setting, text):
    code, errors = command("--set", f"worker.{setting}")
    assert code
    assert text in errors
    assert "tokenizer" not in errors


def test_a_second_worker_on_the_same_port_is_refused():
    with worker() as process:
        code, text = command("--listen", process.address)
        assert code
        assert "cannot listen on" in text


@pytest.mark.parametrize(
    ("text", "target", "is_loopback"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("localhost", "localhost:50051", True),
        ("[::1]:7", "[::1]:7", True),
        ("unix:/run/w", "unix:/run/w", True),
        ("10.0.0.1:1", "10.0.0.1:1", False),
        ("[::]:1", "[::]:1", False),
    ],
)
def test_an_address_is_recognized(text, target, is_loopback):
    found = listen_address(text)
    assert (found.target, found.is_loopback) == (target, is_loopback)


@pytest.mark.parametrize("text", ["", "unix:", "a b:1", "host:0x1", "host:70000", "::1", "[::1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="no address"):
        listen_address(text)


@pytest.mark.parametrize("parse", [listen_address, worker_reference])
def test_a_path_that_is_too_long_for_a_socket_file_is_refused(parse):
    scheme = "unix:" if parse is listen_address else "grpc://"
    assert parse(f"{scheme}/{'x' * 102}")
    with pytest.raises(ConfigError, match="path has over 103 bytes"):
        parse(f"{scheme}/{'é' * 52}")


def test_a_reference_names_a_host_or_a_socket_file_and_perhaps_a_model():
    assert worker_reference("grpc://gpu1").addresses[0].target == "gpu1:50051"
    assert worker_reference("grpc://gpu1:7/demo").model == "demo"
    assert worker_reference("grpc:///run/w%20.sock").addresses[0].target == "unix:/run/w .sock"
    several = worker_reference("grpc://gpu1,gpu2:7/demo")
    assert [each.target for each in several.addresses] == ["gpu1:50051", "gpu2:7"]
    with pytest.raises(ConfigError, match="names a worker twice"):
        worker_reference("grpc://gpu1,gpu1")


# Gateways that break the protocol.


def ended(process, *messages, method="Session"):
    """Return what a worker answers to messages, and the status with which it ends the call."""
    with channel(process) as calls:
        parts, end = held(*messages)
        try:
            return received(getattr(WorkerStub(calls), method)(parts, timeout=60))
        finally:
            end()


WRONG_BYTES = {
    "no frame": b"GET / HTTP/1.1\r\n\r\n",
    "another version": b"VLMW\0\1\0\0\0\0\0\1x",
    "a head over the limit": b"VLMW\0\2\0\0\xff\xff\xff\xff",
    "buffers over the limit": b"VLMW\0\2\0\1\0\0\0\1" + (2**40).to_bytes(8, "big") + b"x",
    "no message": b"VLMW\0\2\0\0\0\0\0\6\x91\xa4what",
}


@pytest.mark.parametrize("content", WRONG_BYTES.values(), ids=WRONG_BYTES.keys())
@pytest.mark.parametrize("method", ["Session", "Answer"])
def test_bytes_that_are_no_message_end_the_call_and_nothing_else(strict, content, method):
    _, status = ended(strict, content, method=method)
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    with load(strict) as model:
        assert model.generate("hello").text == "hello"


def prompt(*parts):
    return Part(prompt=Prompt(parts=[PromptPart(**part) for part in parts]))


KEY = bytes(range(16))
WRONG_PROMPTS = {
    "too many parts": prompt(*[{"key": KEY}] * 4097),
    "a part without a key": prompt({"key": KEY}, {"num_tokens": 3}),
    "a long key": prompt({"key": b"x" * 200_000}),
    "a long digest of an image": prompt({"key": KEY, "image": KEY * 2}),
}


@pytest.mark.parametrize("part", WRONG_PROMPTS.values(), ids=WRONG_PROMPTS.keys())
@pytest.mark.parametrize("method", ["Session", "Answer"])
def test_a_malformed_prompt_of_a_gateway_ends_its_call_and_is_shown_to_nobody(strict, part, method):
    with shown_prompts(strict) as shown:
        _, status = ended(strict, part, method=method)
        assert status == grpc.StatusCode.INVALID_ARGUMENT
        last = prompt({"key": KEY, "num_tokens": 7})
        parts, end = held(last)
        with channel(strict) as calls:
            call = WorkerStub(calls).Session(parts, timeout=60)
            wait_until(lambda: last.prompt in shown)
            end()
            assert received(call)[1] == grpc.StatusCode.OK
    assert part.prompt not in shown


@contextmanager
def shown_prompts(process):
    """Open a session, and collect the prompts of other gateways that it is shown."""
    found, is_open = [], threading.Event()

    def read():
        with suppress(grpc.RpcError):
            for part in call:
                is_open.set()
                if part.HasField("prompt"):
                    found.append(part.prompt)

    parts, end = held()
    with channel(process) as calls:
        call = WorkerStub(calls).Session(parts)
        reader = threading.Thread(target=read)
        reader.start()
        assert is_open.wait(60)
        yield found
        end()
        reader.join(60)


def test_a_gateway_is_shown_the_latest_prompts_of_others_and_not_its_own():
    """All of them would fill the memory of the worker."""
    large = [prompt(*[{"key": KEY, "num_tokens": n, "image": KEY}] * 4096) for n in range(1, 61)]
    assert sum(each.ByteSize() for each in large) > 2 * MAX_BYTES
    with worker() as process, shown_prompts(process) as early:
        parts, end = held(*large)
        with channel(process) as calls:
            call = WorkerStub(calls).Session(parts)
            wait_until(lambda: large[-1].prompt in early)
            with shown_prompts(process) as late:
                wait_until(lambda: large[-1].prompt in late)
            end()
            assert not any(part.HasField("prompt") for part in call)
    numbers = [each.parts[0].num_tokens for each in late]
    assert numbers == list(range(61 - len(late), 61))
    assert sum(each.ByteSize() for each in late) <= MAX_BYTES < 2 * MAX_BYTES
    assert len(late) > 10


def test_a_message_of_grpc_over_the_limit_ends_the_call(strict):
    with channel(strict, ("grpc.max_send_message_length", 2**24)) as calls:
        parts, end = held(b"x" * 2**23)
        _, status = received(WorkerStub(calls).Session(parts, timeout=60))
        end()
        assert status in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)


def test_a_message_that_is_never_finished_ends_the_call(strict):
    _, status = ended(strict, frame(submit())[:-4])
    assert status == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_demand_without_a_decision_ends_the_request(strict):
    with channel(strict) as calls:
        parts, end = held(submit(asks=True))
        found, status = received(WorkerStub(calls).Answer(parts, timeout=60))
        end()
        assert [type(each) for each in found] == [Demanded, Refused]
        assert "did not decide" in str(found[1].error)
        assert status == grpc.StatusCode.OK


def test_a_gateway_can_neither_close_nor_drain_the_runner_by_messages(strict):
    with channel(strict) as calls:
        parts, end = held(Close(), Drain(3, 0.0), submit(4))
        found, _ = received(WorkerStub(calls).Answer(parts, timeout=60))
        end()
        assert any(isinstance(each, News) for each in found)
    with load(strict) as model:
        assert model.generate("hello").text == "hello"


def test_a_session_has_only_so_many_open_requests(strict):
    endless = script(text="x", tokens=20_000)
    with channel(strict) as calls:
        parts, end = held(*[submit(n, text=endless, tokens=20_000) for n in range(1, 7)])
        call = WorkerStub(calls).Session(parts, timeout=60)
        reader, refused = MessageReader(MANY_BYTES), []
        for part in call:
            refused += [
                each.number for each in reader.feed(part.content) if isinstance(each, Refused)
            ]
            if len(refused) == 2:
                break
        assert refused == [5, 6]
        call.cancel()
        end()


def test_a_number_that_is_used_twice_ends_the_session(strict):
    endless = script(text="x", tokens=20_000)
    twice = [submit(1, text=endless, tokens=20_000), submit(1)]
    _, status = ended(strict, *twice)
    assert status == grpc.StatusCode.OK


def test_a_worker_has_only_so_many_calls_at_once(strict):
    with channel(strict) as calls:
        stub = WorkerStub(calls)
        sessions = [(stub.Session(parts), end) for parts, end in (held() for _ in range(6))]
        for call, _ in sessions:
            next(iter(call))
        with channel(strict, ("grpc.use_local_subchannel_pool", 1)) as others:
            with pytest.raises(grpc.RpcError) as found:
                WorkerStub(others).Describe(DescribeRequest(), timeout=60)
            assert found.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for call, end in sessions:
            end()
            call.cancel()
    wait_until(lambda: is_reachable(strict))


def is_reachable(process):
    with channel(process) as calls:
        try:
            WorkerStub(calls).Describe(DescribeRequest(), timeout=60)
        except grpc.RpcError:
            return False
        return True


def test_a_gateway_that_does_not_read_holds_nothing_for_long(strict):
    """Its answers wait in the worker, whose memory they do not fill; then its call ends."""
    text = script(text="abcdefgh" * 500, tokens=20_000)
    given = {"text": text, "tokens": 20_000, "logprobs": True, "top_logprobs": 20}
    many = [submit(number, **given) for number in range(1, 5)]
    options = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    before = strict.num_sampled
    with channel(strict, *options) as calls:
        parts, end = held(*many)
        call = WorkerStub(calls).Session(parts)
        wait_until(lambda: strict.num_sampled > before)  # it may be idle again before it is seen
        wait_until(lambda: strict.is_idle)  # although nothing was read
        _, status = received(call)
        end()
        assert status == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_gateway_that_disappears_leaves_nothing(strict):
    endless = script(text="x", tokens=20_000)
    for messages in (
        [submit(text=endless, tokens=20_000)],
        [submit(asks=True)],
        [submit(text=endless, tokens=20_000), Flow(1, is_paused=True)],
        [submit(text=endless, tokens=20_000), Abort(1)],
        [frame(submit())[:-4]],
    ):
        with channel(strict) as calls:
            parts, end = held(*messages)
            call = WorkerStub(calls).Session(parts)
            next(iter(call))
            end()
    wait_until(lambda: strict.is_idle)


@pytest.mark.slow
def test_an_idle_connection_with_frequent_signs_of_life_stays(strict):
    """Otherwise the worker would end it with ``too_many_pings``."""
    with worker("--set", "worker.keepalive_s=1") as process, load(process, keepalive_s=1.0) as it:
        connection = it.runner._connection
        time.sleep(8)
        assert it.runner._connection is connection
        assert it.generate("hello").text == "hello"


@pytest.mark.slow
def test_a_connection_of_grpc_alone_may_ping_as_often(strict):
    options = (
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    with channel(strict, *options) as calls:
        WorkerStub(calls).Describe(DescribeRequest())
        seen = []
        calls.subscribe(seen.append)
        time.sleep(8)
        assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in seen
        assert grpc.ChannelConnectivity.IDLE not in seen[1:]


# The end of a worker.


def test_a_signal_drains_a_worker_whose_answers_end(tmp_path):
    with worker() as process, load(process) as model:
        slow = script(text="x", tokens=40, latency_s=0.05)
        running = model.submit(model.request(slow, max_tokens=40))
        asyncio.run(running.next_chunks())
        process.signal(signal.SIGTERM)
        with channel(process) as calls:
            health = health_pb2_grpc.HealthStub(calls)
            wait_until(lambda: status_of(health) != 1)
        assert running.result().choices[0].finish_reason in ("stop", "length")
        assert process.ended() == 0


def status_of(health):
    try:
        return health.Check(health_pb2.HealthCheckRequest(), timeout=60).status
    except grpc.RpcError:
        return 0


def test_a_drain_refuses_new_requests_and_ends_the_worker():
    with worker() as process, load(process) as model:
        slow = script(text="x", tokens=20_000, latency_s=0.1)
        running = model.submit(model.request(slow, max_tokens=20_000))
        with channel(process) as calls:
            stub = WorkerStub(calls)
            assert not stub.Drain(DrainRequest(timeout_s=0.5)).is_empty
        with pytest.raises(EngineError, match="the process ends"):
            running.result()
        assert process.ended() == 0


def test_a_worker_whose_engine_fails_ends_with_an_error():
    with worker() as process, load(process) as model:
        with pytest.raises(EngineError):
            model.generate(script(text="abc", crash_at_token=1))
        assert process.ended() == 3
