"""The wire codec: every listed value survives, and no frame harms the reader."""

import asyncio
import io
import random
import socket
import struct
import threading
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from wire_values import VALUES, plain

from vlmkit import errors
from vlmkit.errors import ConfigError, RequestError, VlmkitError, WireError
from vlmkit.types.completion import Chunk
from vlmkit.types.delta import TextDelta
from vlmkit.types.demand import Demand
from vlmkit.types.image import Image
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, Message
from vlmkit.types.request import Request
from vlmkit.types.sample import Logprob, Sample
from vlmkit.wire.buffers import NotSerializable
from vlmkit.wire.codec import WIRE, Codec
from vlmkit.wire.failures import ERRORS
from vlmkit.wire.frames import (
    MAGIC,
    PROTOCOL_VERSION,
    Frame,
    FrameLimits,
    FrameSplitter,
    aread_frame,
    awrite_frame,
    frame_parts,
    read_frame,
    write_frame,
)
from vlmkit.wire.json_values import MAX_DEPTH
from vlmkit.wire.type_names import TYPES

SMALL = FrameLimits(2**16, 16, 2**16)


def content_of(frame: Frame) -> bytes:
    return b"".join(map(bytes, frame_parts(frame)))


def received(content: bytes, limits: FrameLimits = SMALL):
    return WIRE.decode(read_frame(io.BytesIO(content), limits))


def request() -> Request:
    pixels = Image.open(np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
    file = FilePart(bytes(range(256)) * 2)
    messages = [Message.of("user", "what?", [pixels, pixels, file])]
    return Request(messages=messages, tools=[{"a": [1, {"b": 2**70}]}], tenant="t")


# Every value survives.


@pytest.mark.parametrize("name", sorted(VALUES))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_listed_value_survives_and_is_encoded_the_same_again(name, data):
    value = data.draw(VALUES[name])
    content = content_of(WIRE.encode(value))
    found = received(content, FrameLimits())
    assert plain(found) == plain(value)
    assert content_of(WIRE.encode(found)) == content


def test_an_image_that_occurs_twice_is_sent_once_and_is_one_object():
    frame = WIRE.encode(request())
    assert len(frame.buffers) == 2
    first, second, _, _ = WIRE.decode(frame).messages[0].parts
    assert first.image is second.image
    assert first.image.digest == request().messages[0].parts[0].image.digest


def test_large_content_is_outside_of_the_head():
    array = np.zeros(2**20, np.float32)
    frame = WIRE.encode(Chunk(0, embedding=array))
    assert len(frame.head) < 100
    assert np.shares_memory(np.frombuffer(frame.buffers[0], np.float32), array), "it is copied"


def test_a_received_array_can_be_written_to():
    chunk = received(content_of(WIRE.encode(Chunk(0, embedding=np.ones(3, np.float32)))))
    chunk.embedding[0] = 2.0
    assert chunk.embedding.tolist() == [2.0, 1.0, 1.0]


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_keeps_its_class_and_an_unknown_one_becomes_its_nearest_base(name):
    class Unknown(ERRORS[name]):
        pass

    error = Unknown.__new__(Unknown)
    VlmkitError.__init__(error, "what is wrong", hint="what to do")
    if isinstance(error, RequestError):
        error.param, error.code = "messages", "a_code"
    found = WIRE.decode(WIRE.encode(error))
    assert type(found) is ERRORS[name]
    assert (str(found), found.hint) == ("what is wrong", "what to do")
    assert getattr(found, "code", None) == getattr(error, "code", None)


def test_every_error_class_of_vlmkit_is_listed():
    public = {
        n
        for n, k in vars(errors).items()
        if isinstance(k, type) and k.__module__ == errors.__name__
    }
    assert public == set(ERRORS)


def test_errors_that_were_found_together_stay_together():
    error = ConfigError.together([ConfigError("one"), ConfigError("two", hint="fix it")])
    found = WIRE.decode(WIRE.encode(error))
    assert [(str(each), each.hint) for each in found.each()] == [("one", ""), ("two", "fix it")]
    assert found.__notes__ == error.__notes__


# What cannot be sent.


class Sound:
    digest, num_bytes = b"", 1


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Request(messages=[Message("user", (MediaPart("audio", Sound()),))]),
        Request(fields={"a": object()}),
        Request(fields={"a": {1: 2}}),
        Request(tools=[nested(MAX_DEPTH + 1)]),
        Request(text="\ud800"),
        Request(fields={"a": 10**12_000}),
        Chunk(0, embedding=np.array(["text"])),
        Chunk("zero", samples=(object(),)),
    ],
)
def test_a_value_of_no_listed_type_is_never_sent(value):
    with pytest.raises(NotSerializable):
        WIRE.encode(value)


def test_an_image_of_a_plugins_decoder_is_not_sent():
    source = Image.open(np.zeros((4, 4, 3), np.uint8))
    image = Image((4, 4), b"x", cost=source.cost, decoder="module:function")
    with pytest.raises(NotSerializable):
        WIRE.encode(Request(messages=[Message("user", (ImagePart(image),))]))


def test_a_codec_refuses_a_type_with_a_field_that_is_not_listed():
    with pytest.raises(TypeError, match="not among the listed types"):
        Codec({"message": Message})


# Frames that are refused.


def header(magic=MAGIC, version=PROTOCOL_VERSION, num_buffers=0, head_bytes=0):
    return struct.pack(">4sHHI", magic, version, num_buffers, head_bytes)


@pytest.mark.parametrize(
    "content",
    [
        header(magic=b"HTTP"),
        header(version=PROTOCOL_VERSION + 1),
        header(version=0),
        header(head_bytes=2**32 - 1),
        header(num_buffers=2**16 - 1),
        header(num_buffers=1) + struct.pack(">Q", 2**63),
        header(num_buffers=2) + struct.pack(">2Q", 2**15, 2**15 + 1),
    ],
)
def test_a_frame_of_another_version_or_over_a_limit_is_refused_before_it_is_read(content):
    file = io.BytesIO(content + bytes(100))
    with pytest.raises(WireError):
        read_frame(file, SMALL)
    assert file.tell() <= len(content)


HEADS = {
    "nothing": b"",
    "no type": b"\x91\x01",
    "an unknown type": b"\x91\xa5other",
    "too few fields": b"\x92\xa7logprob\x01",
    "too many fields": b"\x97\xa7logprob\x01\xcb" + bytes(8) + b"\x01\x01\x01\x01",
    "another type of field": b"\x93\xa7logprob\xa1x\x01",
    "a number over 64 bits": b"\x93\xa7logprob\xc7\x09\x01" + b"\x7f" * 9 + b"\x01",
    "an unknown extension": b"\x93\xa7logprob\xd4\x05\x01\x01",
    "an array of four billion items": b"\xdd\xff\xff\xff\xff\xa5chunk",
    "a map of four billion items": b"\xdf\xff\xff\xff\xff\xa5chunk",
    "a text of four billion bytes": b"\x91\xdb\xff\xff\xff\xffchunk",
    "a million levels": b"\x91" * 10**6,
    "two values": WIRE.encode(Demand(1)).head + b"\x01",
}


@pytest.mark.parametrize("name", sorted(HEADS))
def test_a_malformed_head_is_refused_with_one_error(name):
    with pytest.raises(WireError):
        WIRE.decode(Frame(HEADS[name]))


def test_a_value_that_is_too_deep_is_refused():
    good = Request(tools=[nested(MAX_DEPTH - 2)])
    head = bytes(WIRE.encode(good).head)
    assert WIRE.decode(Frame(head)).tools == tuple(good.tools)
    deeper = head.replace(b"\x81\xa1a\x80", b"\x81\xa1a" * 5 + b"\x80")
    with pytest.raises(WireError):
        WIRE.decode(Frame(deeper))


@pytest.mark.parametrize(
    ("head", "buffers"),
    [
        ([0, "<f4", [3]], [bytes(11)]),
        ([0, "<f4", [-1, -3]], [bytes(12)]),
        ([0, "O", [1]], [bytes(8)]),
        ([0, "V12", [1]], [bytes(12)]),
        ([1, "<f4", [3]], [bytes(12)]),
        ([-1, "<f4", [3]], [bytes(12)]),
        ([0, "<f4", [3]], [bytes(12), b"unused"]),
        ([0, "<f4", [2**40, 2**40]], [bytes(12)]),
        ([0, "<f4", [1] * 64], [bytes(4)]),
    ],
)
def test_an_array_that_does_not_match_its_buffer_is_refused(head, buffers):
    import msgspec

    sent = ["chunk", 0, [], [], None, ["array", *head], None, []]
    with pytest.raises(WireError):
        WIRE.decode(Frame(msgspec.msgpack.encode(sent), buffers))


def test_a_value_that_its_type_refuses_is_refused():
    content = content_of(WIRE.encode(Message.of("user", "x")))
    with pytest.raises(WireError):
        received(content.replace(b"\xa4user", b"\xa4nurs"))


def test_a_frame_that_is_cut_off_is_an_end_of_file():
    content = content_of(WIRE.encode(request()))
    for end in range(len(content)):
        with pytest.raises(EOFError):
            read_frame(io.BytesIO(content[:end]))


def test_a_length_that_is_only_claimed_allocates_nothing():
    content = header(num_buffers=1, head_bytes=0) + struct.pack(">Q", 2**31) + bytes(1000)
    tracemalloc.start()
    try:
        with pytest.raises(EOFError):
            read_frame(io.BytesIO(content))
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


# Mutated frames.


def samples() -> list[bytes]:
    logprob = Logprob(5, -0.5)
    values = [
        request(),
        Chunk(0, (TextDelta("abc"),), (Sample(5, -0.5, (logprob,)),), "stop"),
        Chunk(0, embedding=np.arange(9, dtype=np.float32)),
        Demand(4, (2, 2), 9, 1, ("a#/b",)),
        RequestError("no", param="messages", hint="yes"),
    ]
    return [content_of(WIRE.encode(value)) for value in values]


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Change, remove, repeat or insert bytes, or cut the frame off."""
    made = bytearray(content)
    for _ in range(chance.randint(1, 6)):
        start = chance.randrange(len(made) + 1)
        stop = min(len(made), start + chance.choice([1, 1, 2, 4, 8, 64]))
        noise = chance.randbytes(stop - start)
        made[start:stop] = chance.choice([noise, b"", made[start:stop] * 2, b"\xff" * 4, noise * 2])
        if chance.random() < 0.1:
            del made[start:]
        if not made:
            made = bytearray(b"\x00")
    return bytes(made)


def try_frames(num: int, seed: int) -> tuple[int, int]:
    """Read and decode mutated frames; return how many were refused and how many decoded."""
    chance, originals = random.Random(seed), samples()
    num_refused = num_decoded = 0
    for _ in range(num):
        try:
            value = received(mutated(chance.choice(originals), chance))
            num_decoded += 1
            assert isinstance(value, (*TYPES.values(), VlmkitError))
        except (WireError, EOFError):
            num_refused += 1
    return num_refused, num_decoded


@pytest.mark.parametrize("num", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutated_frames_neither_crash_the_reader_nor_grow_its_memory(num):
    try_frames(200, seed=0)  # caches of the libraries
    tracemalloc.start()
    try:
        num_refused, num_decoded = try_frames(num, seed=1)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_refused > num // 2
    assert num_decoded, "no mutation was harmless, so decoding was hardly tried"
    assert held < 2**19
    assert peak < 2**23


@pytest.mark.parametrize("num", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_peer_of_a_writer_of_mutated_frames_ends_each_connection_once(num):
    """Over sockets, at both ends: asyncio reads what a thread sends, and answers."""
    chance, originals = random.Random(2), samples()

    async def serve(reader, writer):
        try:
            WIRE.decode(await aread_frame(reader, SMALL))
            await awrite_frame(writer, WIRE.encode(Demand(1)))
        except (WireError, EOFError, OSError):
            pass
        writer.close()

    def call(port):
        with socket.create_connection(("127.0.0.1", port), 60) as connection:
            connection.sendall(mutated(chance.choice(originals), chance))
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as answers:
                try:
                    return WIRE.decode(read_frame(answers)) == Demand(1)
                except (EOFError, OSError):
                    return False

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        found = [await asyncio.to_thread(call, port) for _ in range(num)]
        server.close()
        return found

    answered = asyncio.run(run())
    assert 0 < sum(answered) < num / 2


# Both kinds of readers and writers.


def test_files_and_asyncio_streams_speak_the_same_frames():
    here, there = socket.socketpair()
    values = [request(), Demand(3), RequestError("no")]

    async def echo():
        reader, writer = await asyncio.open_connection(sock=there)
        for _ in values:
            await awrite_frame(writer, await aread_frame(reader))
        writer.close()
        await writer.wait_closed()

    thread = threading.Thread(target=asyncio.run, args=(echo(),))
    thread.start()
    with here, here.makefile("rwb") as file:
        for value in values:
            write_frame(file, WIRE.encode(value))
            assert plain(WIRE.decode(read_frame(file))) == plain(value)
        with pytest.raises(EOFError):
            read_frame(file)
    thread.join()


def test_frames_follow_each_other_in_one_stream():
    file = io.BytesIO()
    for number in range(5):
        write_frame(file, WIRE.encode(Demand(number)))
    file.seek(0)
    assert [WIRE.decode(read_frame(file)).prompt_tokens for _ in range(5)] == list(range(5))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_frames_that_arrive_in_pieces_are_the_same(data):
    values = data.draw(st.lists(st.sampled_from([request(), Demand(3), RequestError("no")])))
    content = b"".join(content_of(WIRE.encode(value)) for value in values)
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=20))
    bounds = [0, *sorted(cuts), len(content)]
    splitter = FrameSplitter()
    found = [
        frame for start, end in pairwise(bounds) for frame in splitter.feed(content[start:end])
    ]
    assert [plain(WIRE.decode(frame)) for frame in found] == [plain(value) for value in values]


def test_a_frame_in_pieces_is_refused_as_soon_as_its_lengths_are_known():
    content = header(num_buffers=1) + struct.pack(">Q", SMALL.max_buffer_bytes + 1)
    splitter = FrameSplitter(SMALL)
    assert splitter.feed(content[:-1]) == []
    with pytest.raises(WireError):
        splitter.feed(content[-1:])
    with pytest.raises(WireError):
        FrameSplitter(SMALL).feed(header(version=PROTOCOL_VERSION + 1))


@pytest.mark.parametrize("num", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutated_frames_in_pieces_are_those_that_a_file_has(num):
    chance, originals = random.Random(4), samples()
    for _ in range(num):
        content = mutated(chance.choice(originals), chance)
        cut = chance.randrange(len(content) + 1)
        assert in_pieces(content[:cut], content[cut:]) == in_a_file(content)


def in_pieces(*pieces: bytes) -> list[tuple[Any, ...]] | None:
    """Return the frames of pieces; None if they are refused."""
    splitter, found = FrameSplitter(SMALL), []
    try:
        for piece in pieces:
            found += splitter.feed(piece)
    except WireError:
        return None
    return [(frame.head, *frame.buffers) for frame in found]


def in_a_file(content: bytes) -> list[tuple[Any, ...]] | None:
    """Return the whole frames of a file; None if one is refused."""
    file, found = io.BytesIO(content), []
    try:
        while True:
            found.append(read_frame(file, SMALL))
    except WireError:
        return None
    except EOFError:
        return [(frame.head, *frame.buffers) for frame in found]
