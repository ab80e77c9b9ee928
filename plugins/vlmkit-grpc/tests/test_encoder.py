"""Real encoder processes in front of strange, slow and hostile workers."""

import signal
import subprocess
import sys
import threading
from itertools import chain

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mock_model import picture, wait_until
from vlmkit.errors import ConfigError, EngineError, VlmkitError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.running.remote_encoder.messages import CODEC, Encode, Encoded, Lookup, NotCached
from vlmkit.running.remote_runner.messages import MessageReader, message_parts
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit_grpc.addresses import listen_address
from vlmkit_grpc.protocol.encoder_pb2 import DescribeEncoderRequest
from vlmkit_grpc.protocol.encoder_pb2_grpc import EncoderStub
from vlmkit_grpc.protocol.worker_pb2 import Part
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from workers import encoder

pytestmark = pytest.mark.posix

MANY_BYTES = 2**28
IDENTITY = MockVisionEncoder.identity
CODES = grpc.StatusCode


def frame(message):
    return b"".join(message_parts(message, MANY_BYTES, CODEC))


def slot_of(shown):
    (slot,) = MockTokenizer().prompt([Message.of("user", "", [Image.open(shown)])]).media
    return slot


def lookup(slot, identity=IDENTITY, scope=b""):
    return frame(Lookup(identity, scope, slot.digest))


def converse(process, *contents, holds=False):
    """Send bytes in order, and return all messages of the encoder and the status of the call.

    With ``holds``, the call stays open for sending.
    """
    is_over = threading.Event()

    def parts():
        for content in contents:
            for start in range(0, len(content), 2**18):
                yield Part(content=content[start : start + 2**18])
        if holds:
            is_over.wait(120)

    found, reader = [], MessageReader(MANY_BYTES, CODEC)
    with grpc.insecure_channel(process.address) as channel:
        try:
            for part in EncoderStub(channel).Encode(parts(), timeout=120):
                found += reader.feed(part.content)
        except grpc.RpcError as error:
            return found, error.code()
        finally:
            is_over.set()
    return found, CODES.OK


def answers(process):
    """Return whether an image is encoded."""
    slot = slot_of(picture(123, 45))
    found, code = converse(process, lookup(slot), frame(Encode(slot)))
    return code == CODES.OK and isinstance(found[-1], Encoded)


@pytest.fixture(scope="module")
def strict():
    """An encoder with short times and low limits."""
    limits = {"stall_timeout_s": 1.0, "max_message_bytes": 2**20, "max_streams": 4}
    given = chain(*[("--set", f"encoder.{name}={value}") for name, value in limits.items()])
    with encoder(*given) as process:
        yield process
        assert answers(process)


def test_an_image_is_asked_for_once_and_then_cached(strict):
    slot = slot_of(picture(33, 22))
    found, code = converse(strict, lookup(slot), frame(Encode(slot)))
    assert code == CODES.OK
    assert [type(each) for each in found] == [NotCached, Encoded]
    assert not found[1].is_cached
    (expected,) = MockVisionEncoder().encode([slot])
    np.testing.assert_array_equal(found[1].features.embeddings, expected.embeddings)
    (cached,), code = converse(strict, lookup(slot))
    assert cached.is_cached
    np.testing.assert_array_equal(cached.features.embeddings, expected.embeddings)
    (first,), _ = converse(strict, lookup(slot, scope=b"another tenant"), holds=True)
    assert isinstance(first, NotCached)


HUGE = MediaSlot(0, 4, b"0" * 32, {"digest": np.zeros(2**21, np.uint8)}, 4)


@pytest.mark.parametrize(
    ("contents", "code"),
    [
        ([b"GET / HTTP/1.1\r\n\r\n" * 4], CODES.INVALID_ARGUMENT),
        ([lookup(HUGE), frame(Encode(HUGE))], CODES.INVALID_ARGUMENT),
        ([frame(Encode(HUGE))], CODES.INVALID_ARGUMENT),
        ([frame(NotCached())], CODES.INVALID_ARGUMENT),
        ([lookup(HUGE), frame(NotCached())], CODES.INVALID_ARGUMENT),
        ([lookup(HUGE), frame(Encode(slot_of(picture())))], CODES.INVALID_ARGUMENT),
        ([lookup(HUGE), lookup(HUGE)], CODES.INVALID_ARGUMENT),
        ([lookup(HUGE, identity="another one")], CODES.FAILED_PRECONDITION),
        ([lookup(HUGE)[:20]], CODES.INVALID_ARGUMENT),
        ([], CODES.INVALID_ARGUMENT),
    ],
)
def test_what_is_no_conversation_is_refused(strict, contents, code):
    found, status = converse(strict, *contents)
    assert status == code
    assert not any(isinstance(each, Encoded) for each in found)
    assert answers(strict)


@pytest.mark.parametrize(
    "contents", [[], [lookup(HUGE)[:20]], [lookup(HUGE)], [lookup(HUGE), b"VLMW"]]
)
def test_a_call_that_stalls_ends(strict, contents):
    found, status = converse(strict, *contents, holds=True)
    assert status == CODES.DEADLINE_EXCEEDED
    assert not any(isinstance(each, Encoded) for each in found)
    assert answers(strict)


def test_inputs_that_the_encoder_cannot_take_are_an_error_of_this_image(strict):
    good, bad = slot_of(picture(44, 4)), slot_of(picture(45, 4))
    wrong = MediaSlot(0, 4, bad.digest, {"other": np.zeros(4, np.float32)}, 4)
    (_, error), code = converse(strict, lookup(bad), frame(Encode(wrong)))
    assert code == CODES.OK
    assert isinstance(error, EngineError)
    sound = MediaSlot(0, 4, good.digest, good.inputs, 4, kind="audio")
    (_, error), _ = converse(strict, lookup(good), frame(Encode(sound)))
    assert "takes no 'audio'" in str(error)
    assert isinstance(error, VlmkitError)


def test_more_calls_than_the_bound_are_refused(strict):
    results = []

    def hold():
        results.append(converse(strict, holds=True)[1])

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert set(results) <= {CODES.DEADLINE_EXCEEDED, CODES.RESOURCE_EXHAUSTED, CODES.UNAVAILABLE}
    assert len(results) == 8
    wait_until(lambda: answers(strict))


def test_a_worker_that_leaves_while_its_image_is_encoded_leaves_nothing_behind():
    with encoder(
        "--set", "media_encoder.latency_s=1.0", "--set", "encoder.max_streams=3"
    ) as process:
        slots = [slot_of(picture(50 + number, 5)) for number in range(12)]
        with grpc.insecure_channel(process.address) as channel:
            for slot in slots:
                both = [Part(content=lookup(slot)), Part(content=frame(Encode(slot)))]
                call = EncoderStub(channel).Encode(iter(both))
                next(call)
                call.cancel()
        wait_until(lambda: answers(process))
        process.signal(signal.SIGTERM)
        assert process.ended() == 0


def test_sigterm_lets_an_image_end_and_refuses_others():
    with encoder("--set", "media_encoder.latency_s=2.0") as process:
        with grpc.insecure_channel(process.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            name = "vlmkit.encoder.v1.Encoder"
            request = health_pb2.HealthCheckRequest(service=name)
            assert health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
            slot, reader = slot_of(picture(66, 6)), MessageReader(MANY_BYTES, CODEC)
            both = [Part(content=lookup(slot)), Part(content=frame(Encode(slot)))]
            call = EncoderStub(channel).Encode(iter(both))
            assert isinstance(next(reader.feed(next(call).content)), NotCached)
            process.signal(signal.SIGTERM)
            wait_until(lambda: health.Check(request).status != 1)
            assert converse(process, lookup(slot))[1] == CODES.UNAVAILABLE
            parts = b"".join(part.content for part in call)
            (done,) = reader.feed(parts)
            assert isinstance(done, Encoded)
        assert process.ended() == 0


def test_the_description_names_the_model_and_what_computes(strict):
    with grpc.insecure_channel(strict.address) as channel:
        found = EncoderStub(channel).Describe(DescribeEncoderRequest())
    assert (found.model, found.identity, list(found.media_kinds)) == ("mock", IDENTITY, ["image"])
    assert strict.digest == IDENTITY


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "encoder", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mock", "--listen", "0.0.0.0:0"], "no secret is required"),
        (["mock", "--listen", "0.0.0.0:0"], "encoder.secret_file"),
        (["mock", "--listen", "a b"], "encoder.listen is 'a b', which is no address"),
        (["mock", "--set", 'media_encoder.use="none"'], "has no media encoder"),
        (
            ["mock", "--set", 'media_encoder={use="remote", addresses=["127.0.0.1:1"]}'],
            "media_encoder.use is 'remote', and this process is to encode itself",
        ),
    ],
)
def test_the_command_refuses_what_cannot_work(arguments, message):
    code, text = command(*arguments)
    assert code in (1, 2)
    assert message in text
    assert "Traceback" not in text


def test_a_socket_file_serves_as_well(socket_folder):
    path = f"unix:{socket_folder}/e.sock"
    assert listen_address(path, "encoder").is_loopback
    with pytest.raises(ConfigError, match=r"encoder\.listen names a socket file"):
        listen_address(f"unix:/{'a' * 200}", "encoder")
    with encoder(listen=path) as process:
        assert process.address == path
        assert answers(process)
