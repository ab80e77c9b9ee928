"""The media encoder ``remote`` beside real encoder processes, also lost and stalled ones."""

import contextlib
import random
import signal
import time

import numpy as np
import pytest
import trustme
from network import BreakingProxy

import vlmkit
from mock_model import picture, wait_until
from vlmkit.errors import ConfigError, EngineError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message
from vlmkit.types.request import Request
from vlmkit_grpc.addresses import encoder_addresses
from vlmkit_grpc.credentials import metadata_of
from vlmkit_grpc.encoders.encoder import RemoteEncoder, num_pixels
from vlmkit_grpc.encoders.peer import EncoderPeer
from vlmkit_grpc.settings import RemoteEncoderSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import MediaEncoderContract
from workers import encoder

pytestmark = pytest.mark.posix

SECRET = "a-secret-of-32-letters-and-digits"
QUICK = {"connect_timeout_s": 5.0, "timeout_s": 60.0}


def load(*addresses, **settings):
    """Return the mock with remote encoders, which encode all images by default."""
    given = {"use": "remote", "addresses": list(addresses), "min_pixels": 0} | QUICK | settings
    return vlmkit.load("mock", media_encoder=given)


def submit(model, shown, tenant=""):
    """Ask about an image, and return the stream."""
    message = Message.of("user", "What is it?", [Image.open(shown)])
    return model.submit(Request(messages=[message], tenant=tenant))


def ask(model, shown, tenant=""):
    """Return the answer about an image."""
    return submit(model, shown, tenant).result().text


def slot_of(shown, max_tokens=None):
    """Return the slot of an image."""
    part = ImagePart(Image.open(shown), ImageOptions(max_tokens=max_tokens))
    (slot,) = MockTokenizer().prompt([Message("user", (part,))]).media
    return slot


def count(model, name):
    return model.stats().counters[name]


def failures(model):
    return sum(number for name, number in model.stats().counters.items() if "failures" in name)


def assert_empty(model):
    """Assert that a model holds nothing of requests."""
    stats = model.stats()
    assert stats.num_running + stats.num_waiting == 0
    assert not model.runner._loop._encodings.present
    peers = model.runner._encoder._peers
    most = model.runner._encoder._settings.max_concurrency
    wait_until(lambda: all(peer._places._value == most for peer in peers))


@pytest.fixture(scope="module")
def process():
    with encoder() as process:
        yield process


def made(address, *, local=True, **settings):
    settings = RemoteEncoderSettings(addresses=(address,), min_pixels=0, **settings)
    peers = [
        EncoderPeer(each, settings, None, metadata_of("")) for each in encoder_addresses((address,))
    ]
    return RemoteEncoder(peers, MockVisionEncoder() if local else None, "", settings)


class TestRemoteEncoder(MediaEncoderContract):
    local = True

    @pytest.fixture(autouse=True)
    def _process(self, process):
        self.address, self.made = process.address, []
        yield
        assert sum(sum(each.counters().values()) for each in self.made) == sum(
            each.counters()["num_media_encoded_remotely"] for each in self.made
        )
        for each in self.made:
            with contextlib.suppress(Exception):
                each.close()

    def make(self):
        self.made.append(made(self.address, local=self.local))
        return self.made[-1]

    def slots(self):
        small = slot_of(picture(9, 7), max_tokens=2)
        return [slot_of(picture(8, 6)), small, slot_of(picture(9, 6)), slot_of(picture(40, 4))]


class TestRemoteEncoderWithoutLocalOne(TestRemoteEncoder):
    local = False


# What goes where.


def test_small_images_stay_here_and_large_ones_go_there(process):
    with load(process.address, min_pixels=1000) as model, vlmkit.load("mock") as alone:
        for number, shown in enumerate([picture(10, 99), picture(10, 100), picture(300, 200)]):
            assert ask(model, shown) == ask(alone, shown)
            assert count(model, "num_media_encoded_remotely") == number
        assert failures(model) == count(model, "num_remote_fallbacks") == 0
        assert_empty(model)


def test_the_pixels_of_an_image_are_those_that_the_tower_sees():
    inputs = {"pixel_values": np.zeros((2, 3, 10, 10), np.float32), "sizes": np.zeros(2, np.int64)}
    assert num_pixels(MediaSlot(0, 1, b"", inputs, 1)) == 200
    assert num_pixels(MediaSlot(0, 1, b"", {}, 1)) == 0
    assert num_pixels(slot_of(picture(30, 20))) == 600


def test_the_features_of_an_image_come_from_the_cache_of_its_scope_alone(process):
    with contextlib.closing(made(process.address)) as own:
        (peer,), end_s, slot = own._peers, time.monotonic() + 60, slot_of(picture(31, 17))
        found = [
            peer.encode(slot, scope, own.identity, end_s)[1]
            for scope in (b"a" * 32, b"a" * 32, b"b" * 32, b"b" * 32, b"a" * 32)
        ]
        assert found == [False, True, False, True, True]


def test_tenants_have_cache_scopes_of_their_own_at_the_encoder(process):
    shown = picture(77, 55)
    with load(process.address) as one, load(process.address) as other:
        scopes = []
        for model, tenant in ((one, "a"), (other, "a"), (other, "b")):
            sent = model.runner._encoder._peers[0]
            plain = sent.encode

            def noted(slot, scope, *rest, plain=plain):
                features, is_cached = plain(slot, scope, *rest)
                scopes.append((scope, is_cached))
                return features, is_cached

            sent.encode = noted
            ask(model, shown, tenant)
            sent.encode = plain
        (a, first), (again, second), (b, third) = scopes
        assert a == again != b
        assert (first, second, third) == (False, True, False)


def test_an_image_goes_to_the_same_encoder_from_every_pipeline():
    with encoder() as one, encoder() as other:
        addresses = [one.address, other.address]
        with load(*addresses) as first, load(*reversed(addresses)) as second:
            for number in range(12):
                shown = picture(20 + number, 9)
                assert ask(first, shown) == ask(second, shown)
            used = []
            for model in (first, second):
                remote = model.runner._encoder
                order = []
                for slot in [slot_of(picture(20 + number, 9)) for number in range(12)]:
                    peer = next(remote._in_order(b"scope", slot.digest, 0.0))
                    peer.leave()
                    order.append(peer.name)
                used.append(order)
            assert used[0] == used[1]
            assert set(used[0]) == set(addresses)
            assert failures(first) + failures(second) == 0


def test_an_address_gets_no_more_images_at_once_than_its_bound():
    with encoder("--set", "media_encoder.latency_s=0.5") as process:
        with load(process.address, max_concurrency=2, local="none") as model:
            assert model.runner._encoder.max_concurrency == 2
            streams = [submit(model, picture(9 + n, 9)) for n in range(6)]
            for stream in streams:
                assert stream.result().text
            assert count(model, "num_media_encoded_remotely") == 6
            assert_empty(model)
        with load(process.address, max_concurrency=3) as model:
            assert model.runner._encoder.max_concurrency == 4  # and one here


# Which encoders are accepted.


def test_an_encoder_of_another_model_is_refused_with_both_digests(process, tmp_path):
    settings = RemoteEncoderSettings(addresses=(process.address,))
    (address,) = encoder_addresses(settings.addresses)
    for digest, identity, found in (
        ("0" * 64, "", r"its model is [0-9a-f]{64}, and 0{64} is expected"),
        ("", "other 1", "its identity is vlmkit-mock 1, and other 1 is expected"),
    ):
        with pytest.raises(EngineError, match=found):
            EncoderPeer(address, settings, None, ()).describe(60.0, digest, identity, waits=False)


def test_an_encoder_with_another_protocol_is_refused_with_both(process, monkeypatch):
    monkeypatch.setattr("vlmkit_grpc.encoders.peer.encoder_protocol", lambda: "VLMW0-other")
    with pytest.raises(
        EngineError, match=r"with the protocol VLMW\d-[0-9a-f]{16}, and.*VLMW0-other"
    ):
        load(process.address)


def test_an_encoder_that_returns_with_another_model_gets_no_image(caplog):
    with encoder() as process, load(process.address) as model:
        remote = model.runner._encoder
        shown = picture(50, 40)
        remote.identity = "another encoder"  # as if the process had returned as another one
        text = ask(model, shown)
        with vlmkit.load("mock") as alone:
            assert text == ask(alone, shown)
        assert count(model, "num_remote_failures.refused") == 1
        expected = "its identity is vlmkit-mock 1, and another encoder is expected"
        wait_until(lambda: expected in caplog.text)
        ask(model, picture(51, 40))
        assert count(model, "num_media_encoded_remotely") == 0
        assert count(model, "num_remote_fallbacks") == 2


@pytest.mark.parametrize(
    ("sent", "is_right"), [(SECRET, True), (SECRET[:-1] + "x", False), (None, False)]
)
def test_only_a_worker_with_the_secret_is_answered(sent, is_right, tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET)
    given = {} if sent is None else {"secret": sent}
    with encoder("--set", f"encoder.secret_file={file}") as process:
        if is_right:
            with load(process.address, **given) as model:
                ask(model, picture())
                assert count(model, "num_media_encoded_remotely") == 1
        else:
            with pytest.raises(EngineError, match="it refuses the secret"):
                load(process.address, **given)
        assert SECRET not in "".join(process.lines)


def test_tls_protects_the_images(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    own.write_to_path(tmp_path / "own.pem")
    with encoder("--set", f"encoder.tls_certificate={tmp_path / 'own.pem'}") as process:
        with load(process.address, tls_ca=str(tmp_path / "ca.pem")) as model:
            ask(model, picture())
            assert count(model, "num_media_encoded_remotely") == 1
        with pytest.raises(EngineError, match=r"encoder 127.0.0.1:\d+: it "):
            load(process.address, local="none", start_timeout_s=2.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "names no encoder"),
        ({"addresses": ["a b"]}, "is no address"),
        ({"addresses": ["host", "host:50052"]}, "names an encoder twice"),
        ({"addresses": ["host"], "local": "remote"}, "names the encoder 'remote' itself"),
        ({"addresses": ["host"], "local": "none", "local_settings": {"a": 1}}, "local_settings"),
        ({"addresses": ["host"], "local_settings": {"nothing": 1}}, "has no setting 'nothing'"),
        ({"addresses": ["host"], "max_concurrency": 65}, "max_concurrency"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        vlmkit.load("mock", media_encoder={"use": "remote"} | settings)


def test_settings_of_the_local_encoder_reach_it(process):
    with load(process.address, min_pixels=10**6, local_settings={"fail_size": [6, 8]}) as model:
        with pytest.raises(EngineError, match="told to fail"):
            ask(model, picture(8, 6))
        assert ask(model, picture(9, 6))


# Encoders that are lost.


def test_an_absent_encoder_joins_later_and_the_local_one_encodes_meanwhile(caplog):
    with encoder() as process, load(process.address) as model, vlmkit.load("mock") as alone:
        process.signal(signal.SIGKILL)
        process.ended()
        wait_until(lambda: not is_connected(model) or not ask(model, picture(60, 7)))
        assert ask(model, picture(61, 7)) == ask(alone, picture(61, 7))
        assert count(model, "num_remote_fallbacks") >= 1
        with encoder(listen=process.address):
            wait_until(lambda: is_connected(model))
            before = count(model, "num_media_encoded_remotely")
            assert ask(model, picture(62, 7)) == ask(alone, picture(62, 7))
            assert count(model, "num_media_encoded_remotely") == before + 1
        assert_empty(model)
    assert "is lost" in caplog.text


def is_connected(model):
    return all(peer.is_connected for peer in model.runner._encoder._peers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_encoder_that_dies_or_hangs_while_it_encodes_is_replaced_by_the_local_one(number):
    with (
        encoder("--set", "media_encoder.latency_s=100") as process,
        load(process.address, timeout_s=3.0) as model,
        vlmkit.load("mock") as alone,
    ):
        stream = submit(model, picture(70, 7))
        wait_until(lambda: places(model) == 3)
        process.signal(number)
        wanted = submit(alone, picture(70, 7))
        assert stream.result().text == wanted.result().text
        assert count(model, "num_remote_fallbacks") == 1
        kinds = ("lost",) if number == signal.SIGKILL else ("lost", "timeout")
        assert sum(count(model, f"num_remote_failures.{kind}") for kind in kinds) == 1
        assert_empty(model)


def places(model):
    return model.runner._encoder._peers[0]._places._value


def test_without_a_local_encoder_the_loss_is_an_error_with_the_address():
    with encoder("--set", "media_encoder.latency_s=100") as process:
        address = process.address
        with load(address, timeout_s=3.0, local="none") as model:
            stream = submit(model, picture(70, 7))
            wait_until(lambda: places(model) == 3)
            process.signal(signal.SIGKILL)
            with pytest.raises(EngineError, match=f"no encoder can take.*{address}"):
                stream.result()
            with pytest.raises(EngineError, match="none is connected"):
                ask(model, picture(71, 7))
            assert_empty(model)


def test_without_a_local_encoder_another_remote_one_takes_over():
    with encoder("--set", "media_encoder.latency_s=100") as slow, encoder() as other:
        addresses = [slow.address, other.address]
        with load(*addresses, local="none") as model:
            streams = [submit(model, picture(70 + n, 7)) for n in range(8)]
            peers = {peer.name: peer for peer in model.runner._encoder._peers}
            wait_until(lambda: peers[slow.address]._places._value < 4)
            slow.signal(signal.SIGKILL)
            for number, stream in enumerate(streams):
                assert f"{70 + number}x7" in stream.result().text
            assert count(model, "num_media_encoded_remotely") == 8
            assert count(model, "num_remote_failures.lost") >= 1
            assert_empty(model)


@pytest.fixture(scope="module")
def passed(process):
    """The bytes that pass each way for one image on a connection that exists."""
    proxy = BreakingProxy(process.address)
    with load(proxy.address) as model:
        ask(model, picture(90, 9))
        proxy.set()
        ask(model, picture(91, 9))
        yield dict(proxy.num_passed)
    proxy.close()


@pytest.mark.parametrize("is_cutting", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    "direction", ["to_server", pytest.param("to_client", marks=pytest.mark.slow)]
)
def test_a_connection_that_breaks_anywhere_costs_no_answer(process, passed, direction, is_cutting):
    proxy = BreakingProxy(process.address)
    seed = random.Random(f"{direction} {is_cutting}")
    num_bytes = passed[direction]
    assert num_bytes > 100
    with load(proxy.address, timeout_s=1.0, connect_timeout_s=1.0) as model:
        for number in range(10):
            limit = seed.randrange(num_bytes - 40)
            shown = picture(100 + number, 11 if is_cutting else 13)
            proxy.set(**{direction: limit}, is_cutting=is_cutting)
            assert f"{100 + number}x" in ask(model, shown)
            proxy.heal()
            wait_until(lambda: is_connected(model))
        counters = model.stats().counters
        assert counters["num_remote_fallbacks"] >= 5
        encoded = counters["num_media_encoded_remotely"] + counters["num_remote_fallbacks"]
        assert encoded == counters["num_media_encoded"] == 10
        assert_empty(model)
    proxy.close()
