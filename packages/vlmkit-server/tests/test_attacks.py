"""Attacks on a server process: hostile images, files, numbers and bodies.

``docs/explanation/security.md`` lists which test covers which hazard; a test of the workspace
checks that list.
"""

import base64
import io
import json
import pickle
import random
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import PIL.Image
import pytest
from running_server import chat, eventually, image_part, scripted
from watched_server import WatchedProcess, watched

SECRET = "correct-horse-battery-staple"
POSTED = {
    "/v1/chat/completions": chat("hello", max_tokens=3, n=2, temperature=0.5, stop=["a"]),
    "/v1/completions": {"model": "mock", "prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2},
    "/v1/responses": {"model": "mock", "input": "hello", "max_output_tokens": 3, "store": False},
    "/v1/messages": {
        "model": "mock",
        "max_tokens": 3,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    },
    "/v1/messages/count_tokens": {"model": "mock", "messages": [{"role": "user", "content": "a"}]},
    "/v1/embeddings": {"model": "mock", "input": ["a", [1, 2]]},
    "/tokenize": {"model": "mock", "prompt": "hello"},
    "/detokenize": {"model": "mock", "tokens": [65, 66]},
    "/v1/chat/completions/render": chat("hello"),
    "/v1/responses/input_tokens": {"model": "mock", "input": [{"role": "user", "content": "a"}]},
}

pytestmark = pytest.mark.posix


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacked")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[WatchedProcess]:
    """A server whose working folder and temporary folder a test can inspect."""
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "tmp"))
        patch.chdir(folder)
        with watched(folder) as server:
            yield server


def post(server, body, path="/v1/chat/completions", **options):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    return server.http.post(f"{server.url}{path}", content=content, headers=headers, **options)


def post_image(server, content, **fields):
    """Send a file as an image."""
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    messages = [{"role": "user", "content": [image_part(url)]}]
    return post(server, {"model": "mock", "messages": messages, "max_tokens": 3} | fields)


def file_of(image, kind="PNG"):
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


def is_healthy(server):
    """Return whether a valid request is answered as usual and nothing is left of others."""
    answer = post(server, chat(scripted(text="all is well"), max_tokens=50))
    return answer.json()["choices"][0]["message"]["content"] == "all is well"


SIZES = [(1, 1), (1, 2), (2, 1), (1, 200), (200, 1), (65_535, 1), (1, 65_535), (3, 3), (28, 28)]
MODES = ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "YCbCr", "HSV", "LAB"]


@pytest.mark.parametrize("size", SIZES)
def test_an_image_of_any_size_is_answered_or_refused(server, size):
    answer = post_image(server, file_of(PIL.Image.new("RGB", size, "teal")))
    assert answer.status_code in (200, 400)
    assert is_healthy(server)


@pytest.mark.parametrize("mode", MODES)
def test_an_image_of_any_mode_is_answered_or_refused(server, mode):
    image = PIL.Image.new(mode, (9, 7))
    for kind in ("PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP", "AVIF", "JPEG2000"):
        try:
            content = file_of(image, kind)
        except (OSError, ValueError, KeyError):  # the format does not support the mode
            continue
        answer = post_image(server, content)
        is_refused = kind == "JPEG2000" or (kind, mode) == ("TIFF", "LAB")
        assert answer.status_code == (400 if is_refused else 200), (kind, mode)
    assert is_healthy(server)


def test_decoder_error_texts_are_in_no_response_and_no_log(server):
    png = file_of(PIL.Image.new("RGB", (64, 64), "teal"))
    broken = [
        png[:60],
        png.replace(b"IDAT", b"IDAX"),
        png[:33] + b"\0\0\0\5IDATxxxxx" + struct.pack(">I", zlib.crc32(b"IDATxxxxx")),
        b"\xff\xd8\xff\xe0" + b"\0" * 100,
        b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0" * 100,
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    ]
    for content in broken:
        answer = post_image(server, content)
        assert answer.status_code == 400
        message = answer.json()["error"]["message"].lower()
        assert not any(
            word in message for word in ("pil", "0x", "object at", "libpng", "traceback")
        )
    assert is_healthy(server)


def test_an_animation_counts_as_one_image(server):
    frames = [PIL.Image.new("L", (32, 32), number % 256) for number in range(500)]
    content = io.BytesIO()
    frames[0].save(content, "GIF", save_all=True, append_images=frames[1:])
    answer = post_image(server, content.getvalue())
    assert answer.json()["usage"]["prompt_tokens_details"]["image_tokens_each"] != []
    assert len(answer.json()["usage"]["prompt_tokens_details"]["image_tokens_each"]) == 1


@pytest.mark.parametrize(
    "part",
    [
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
        {"type": "video", "video": "data:video/jpeg;base64,AAAA"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        image_part("data:video/jpeg;base64,/9j/AAAA,/9j/AAAA,/9j/AAAA"),
    ],
)
def test_a_video_part_is_refused_whatever_its_type(server, part):
    answer = post(server, {"model": "mock", "messages": [{"role": "user", "content": [part]}]})
    assert answer.status_code == 400


class Malice:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_is_never_loaded(server, folder):
    created = folder / "made-by-a-pickle"
    content = pickle.dumps(Malice(created))
    assert post_image(server, content).status_code == 400
    assert post(server, content).status_code == 400
    sent = base64.b64encode(content).decode()
    part = {"type": "file", "file": {"file_data": sent, "filename": "model.pkl"}}
    assert (
        post(
            server, {"model": "mock", "messages": [{"role": "user", "content": [part]}]}
        ).status_code
        == 400
    )
    assert not created.exists()


def test_clients_cannot_read_or_write_files_of_the_server(server, folder):
    secret = folder / "secret.txt"
    secret.write_text(SECRET)
    before = sorted(folder.rglob("*"))
    for name in (
        str(secret),
        f"file://{secret}",
        "../../written",
        f"{folder}/written",
        "secret.txt",
    ):
        part = {"type": "file", "file": {"file_data": "YWJj", "filename": name}}
        for said in ([image_part(name)], [part], [{"type": "file", "file": {"file_id": name}}]):
            body = {"model": "mock", "messages": [{"role": "user", "content": said}]}
            assert SECRET not in post(server, body | {"user": name, "cache_salt": name}).text
        sent = server.http.post(f"{server.url}/v1/files", files={"file": (name, b"written")})
        if sent.status_code == 200:
            server.http.delete(f"{server.url}/v1/files/{sent.json()['id']}")
        for path in ("/v1/files/", "/v1/models/", "/v1/responses/"):
            assert SECRET not in server.http.get(f"{server.url}{path}{name}").text
    assert sorted(folder.rglob("*")) == before


def test_requests_leave_no_file_in_the_temporary_folder(server, folder):
    content = file_of(PIL.Image.effect_noise((2000, 1500), 50))  # several megabytes
    assert post_image(server, content).status_code == 200
    for _ in range(3):
        sent = server.http.post(f"{server.url}/v1/files", files={"file": ("a.png", content)})
        assert sent.status_code == 200
        server.http.delete(f"{server.url}/v1/files/{sent.json()['id']}")
    assert post_image(server, content[:-1000]).status_code == 400
    assert not [*(folder / "tmp").iterdir()]


def test_client_text_is_in_no_log_and_no_error_response(server, folder):
    message = {"role": "user", "content": SECRET}
    url = f"data:image/png;base64,{base64.b64encode(SECRET.encode()).decode()}"
    bodies = [
        {"model": "mock", "messages": [message], "max_tokens": 3},
        {"model": SECRET, "messages": [message]},
        {"model": "mock", "messages": [message], "temperature": SECRET},
        {"model": "mock", "messages": [{"role": SECRET, "content": "a"}]},
        {"model": "mock", "messages": [{"role": "user", "content": [image_part(url)]}]},
        {"model": "mock", "messages": [message], "stop": [SECRET] * 99},
        {"model": "mock", "messages": [message], "guided_regex": f"({SECRET}"},
    ]
    encoded = base64.b64encode(SECRET.encode()).decode()
    for body in bodies:
        answer = post(server, body, params={"key": SECRET})
        shown_text = answer.text if answer.status_code != 200 else ""
        assert SECRET not in shown_text
        assert encoded not in shown_text
    server.http.get(f"{server.url}/{SECRET}", headers={"authorization": f"Bearer {SECRET}"})
    post(server, SECRET.encode())
    log = (folder / "log").read_text()
    assert SECRET not in log
    assert encoded not in log


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"1e308"])
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "n", "max_tokens", "top_logprobs", "seed"]
)
def test_nan_infinity_and_out_of_range_numbers_are_refused(server, field, value):
    content = json.dumps(chat("a")).encode()[:-1] + b',"%b":%b}' % (field.encode(), value)
    answer = post(server, content)
    means_no_limit = (field, value) == ("max_tokens", b"-1")  # vLLM, llama.cpp and others
    allowed = (200, 400) if (field, value) == ("seed", b"-1") else (400,)
    assert answer.status_code in ((200,) if means_no_limit else allowed)


def test_a_seed_does_not_affect_concurrent_requests(server):
    """Each request has its own random generator."""
    drawn = chat("a", max_tokens=20, temperature=1.0, seed=7, ignore_eos=True)
    alone = post(server, drawn).json()["choices"][0]["message"]["content"]
    others = [chat("b", max_tokens=20, temperature=1.0, seed=n) for n in range(16)]
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda body: post(server, body), [*others, drawn, *others])]
    assert answers[16].json()["choices"][0]["message"]["content"] == alone


def damaged(text, random_of):
    """Return JSON that is damaged in one of several ways."""
    content = bytearray(text)
    for _ in range(random_of.randint(1, 4)):
        index = random_of.randrange(len(content) + 1)
        other = random_of.randrange(len(content) + 1)
        match random_of.randrange(6):
            case 0:
                content[index:index] = random_of.choice(TOKENS)
            case 1:
                del content[min(index, other) : min(index, other) + random_of.randint(1, 8)]
            case 2:
                content[index : index + 1] = bytes([random_of.randrange(256)])
            case 3:
                content[index:index] = content[min(index, other) : max(index, other)]
            case 4:
                digits = [n for n, byte in enumerate(content) if 48 <= byte < 58]
                if digits:
                    content[random_of.choice(digits)] = random_of.randrange(48, 58)
            case _:
                found = content.find(b'"', index)
                end = content.find(b'"', found + 1)
                if 0 <= found < end:
                    content[found + 1 : end] = random_of.choice(NAMES)
    return bytes(content)


TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"-1", b"1e99", b"\\", b"\0"]
TOKENS += [b"\xff", b"\xed\xa0\x80", b'"\\ud800"', b"{}", b"[[]]", b'"":0,', b"9" * 50]
NAMES = [
    b"",
    b"n",
    b"seed",
    b"logit_bias",
    b"tools",
    b"guided_json",
    b"stream",
    b"messages",
    b"user",
]
NAMES += [b"image_url", b"type", b"tool_calls", b"response_format", b"prompt_logprobs", b"\\u0000"]
HEADS = ["POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "BREW"]


def bad_request(server, http, number):
    """Send one probably invalid request, the same for each number, and return its status."""
    random_of = random.Random(number)
    path = random_of.choice([*POSTED])
    content = damaged(json.dumps(POSTED[path]).encode(), random_of)
    method, kind = "POST", "application/json"
    if random_of.random() < 0.1:
        method, path = random_of.choice(HEADS), random_of.choice([path, path + "/x", "/v1/files"])
        kind = random_of.choice([kind, "text/plain", "multipart/form-data; boundary=a", ""])
    headers = {"content-type": kind}
    return http.request(method, f"{server.url}{path}", content=content, headers=headers).status_code


@pytest.mark.parametrize("num", [2000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_thousands_of_bad_requests_cause_no_error_500_and_no_memory_leak(server, num):
    with httpx2.Client(trust_env=False, timeout=300) as http, ThreadPoolExecutor(4) as pool:

        def statuses(numbers):
            return Counter(pool.map(lambda number: bad_request(server, http, number), numbers))

        counts = statuses(range(num // 4))
        before = server.memory_bytes()
        counts += statuses(range(num // 4, num))
    print(counts)
    assert not [status for status in counts if status >= 500 and status != 503], counts
    assert counts[400] > num / 3
    assert eventually(lambda: server.status() == 200)
    assert is_healthy(server)
    assert server.memory_bytes() - before < 64 * 2**20
