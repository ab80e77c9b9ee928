"""Arguments of the Python API: images, dictionaries, texts; errors name the argument."""

import base64
import io
import sys
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import PIL.Image
import pytest

import vlmkit
from vlmkit import cli
from vlmkit.assembly.load import notebook_progress
from vlmkit.errors import ConstraintError, ImageError, MediaError, RequestError, VlmkitError
from vlmkit.kit.install_command import install_command
from vlmkit.types.completion import Completion
from vlmkit.types.constraint import OneOf
from vlmkit.types.image import Image
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart

IMAGE = PIL.Image.new("RGB", (9, 7), "teal")


def encoded(kind="PNG", picture=IMAGE, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


DATA_URL = "data:image/png;base64," + base64.b64encode(encoded()).decode()


@pytest.fixture(scope="module")
def model():
    with vlmkit.load("mock") as model:
        yield model


@pytest.fixture(scope="module")
def image_url():
    class ImageHandler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(encoded())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), ImageHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/a.png"
        server.shutdown()


@pytest.mark.parametrize(
    "image",
    [
        IMAGE,
        np.asarray(IMAGE),
        encoded(),
        bytearray(encoded()),
        DATA_URL,
        Image.open(IMAGE),
        ImagePart(Image.open(IMAGE)),
        FilePart(encoded()),
        encoded("TIFF"),
    ],
    ids=lambda image: type(image).__name__,
)
def test_a_single_image_of_any_type_equals_a_list_of_it(model, image):
    expected = model.generate("what?", images=[IMAGE]).text
    assert "9x7" in expected
    assert model.generate("what?", images=image).text == expected
    assert model.generate("what?", images=[image]).text == expected


def test_a_path_can_be_a_path_or_text(model, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded())
    assert (
        model.generate("what?", images=path).text == model.generate("what?", images=str(path)).text
    )


def test_a_file_can_be_named_by_its_url(model, tmp_path):
    path = tmp_path / "a b.png"
    path.write_bytes(encoded())
    expected = model.generate("what?", images=path).text
    assert model.generate("what?", images=path.as_uri()).text == expected
    part = {"type": "image", "url": path.as_uri()}
    assert "9x7" in model.generate([{"role": "user", "content": [part]}]).text
    for url, problem in (
        ("file:///none/a.png", "file '/none/a.png' cannot be read: No such file"),
        ("file://other/a.png", "is on another machine"),
        ("file:a.png", "names no file by its whole path"),
    ):
        with pytest.raises(MediaError, match=problem) as caught:
            model.generate("what?", images=url)
        assert caught.value.hint
    turn = {"role": "user", "content": [{"type": "image_url", "image_url": path.as_uri()}]}
    with pytest.raises(
        RequestError, match="must be a data: or http"
    ):  # such a message may come from a client
        model.generate([turn])


def test_a_missing_constraint_plugin_is_named_with_its_install_command():
    with (
        vlmkit.load("mock", constraint={"use": "none"}) as model,
        pytest.raises(ConstraintError, match="no plugin is in use here") as caught,
    ):
        model.generate("Is it?", constraint=OneOf(("yes", "no")))
    command = install_command("vlmkit-guidance")
    assert caught.value.hint == f"{command}; and leave constraint.use as it is"


def test_none_and_empty_lists_mean_no_images(model):
    for nothing in (None, [], ()):
        assert model.generate("hello", images=nothing, media=nothing).text == "hello"


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": DATA_URL}}],
        [{"type": "image_url", "image_url": DATA_URL}, "what?"],
        [{"type": "image", "image": IMAGE}, {"type": "text", "text": "what?"}],
        [{"type": "image", "url": DATA_URL}, {"type": "text", "text": "what?"}],
        [IMAGE, "what?"],
    ],
)
def test_messages_can_be_dictionaries(model, content):
    turns = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": content}]
    assert "9x7" in model.generate(turns).text
    assert "9x7" in model.generate(turns[1]).text


def test_tool_calls_are_read_from_dictionaries(model):
    call = {"id": "a", "function": {"name": "look", "arguments": "{}"}}
    request = model.request(
        [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "a", "content": "nothing"},
        ]
    )
    assert [message.role for message in request.messages] == ["user", "assistant", "tool"]
    assert request.messages[1].parts[1].name == "look"
    assert request.messages[2].call_id == "a"


def test_a_single_stop_string_needs_no_list(model):
    assert model.generate("one two three", stop="two").text == "one "


def test_a_url_is_fetched_only_if_fetching_is_enabled(model, image_url):
    with pytest.raises(ImageError, match="not fetched by URL here") as caught:
        model.generate("what?", images=image_url)
    assert "fetch" in caught.value.hint
    fetch = {"enabled": True, "allow_http": True}
    with (
        vlmkit.load("mock", fetch=fetch) as fetching,
        pytest.raises(ImageError) as caught,
    ):
        fetching.generate(
            "what?", images=image_url
        )  # a private address is refused, as for clients of a server
    assert caught.value.code == "image_url_not_allowed"


def test_a_message_whose_parts_are_a_text_is_refused():
    with pytest.raises(RequestError, match="a tuple of parts, not a text") as caught:
        vlmkit.Message("user", "hello")
    assert "Message.of" in caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": 7}, "a prompt must be a text or a list of messages, and was int"),
        ({"prompt": b"x"}, "and was bytes"),
        ({"prompt": None}, "and was NoneType"),
        ({"prompt": [7]}, r"messages\[0\] must be a Message or a dictionary, and was int"),
        ({"prompt": [{"role": "user"}]}, r"messages\[0\] has no content"),
        ({"prompt": [{"role": "king", "content": "x"}]}, "role must be one of"),
        ({"prompt": [{"role": ["user"], "content": "x"}]}, "role must be one of"),
        ({"prompt": [{"role": "user", "content": 7}]}, r"content must be a text or a list"),
        ({"prompt": [{"role": "user", "content": [{"type": "film"}]}]}, "and was 'film'"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text"}]}]},
            "must be a text, and was N",
        ),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}]}]},
            "needs image, url or path",
        ),
        (
            {
                "prompt": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "/etc/x"}]}
                ]
            },
            r"must be a data: or http\(s\) URL",
        ),
        ({"prompt": [{"role": "assistant", "tool_calls": [7]}]}, "must have a function"),
        ({"prompt": "x", "images": 7}, "an image must be a path.* and was int"),
        ({"prompt": "x", "images": [None]}, "an image must be a path.* and was NoneType"),
        ({"prompt": "x", "images": np.zeros((2, 2))}, r"and was ndarray of float64 \[2, 2\]"),
        ({"prompt": "x", "images": ""}, "file '' cannot be read: its path is empty"),
        ({"prompt": "x", "media": 7}, "and was int"),
        ({"prompt": [{"role": "user", "content": "x"}], "images": [IMAGE]}, "into the messages"),
        ({"prompt": "x", "stop": 7}, "stop"),
        ({"prompt": "x", "max_tokens": "9"}, "max_tokens"),
        ({"prompt": "x", "temprature": 1}, "temprature"),
    ],
)
def test_an_invalid_argument_is_an_error_of_vlmkit_that_names_it(model, arguments, message):
    with pytest.raises(RequestError, match=message):
        model.generate(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.embed(5), "texts must be a list of texts, and was int"),
        (lambda model: model.score("x", 5), "must be a list of texts, and was int"),
        (lambda model: model.generate("x", fields=5), "fields must be a dictionary .*was int"),
        (lambda model: model.submit("hello"), "submit takes a Request, and this was str"),
        (lambda _: vlmkit.load(5), "a model is named by a text or a path, and this was int"),
        (lambda _: vlmkit.load(None), "and this was NoneType"),
        (lambda _: vlmkit.load(b"mock"), "and this was bytes"),
        (lambda _: vlmkit.load(""), "and this was empty"),
        (lambda _: vlmkit.fetch(["mock"]), "and this was list"),
        (lambda _: vlmkit.load("mock", config=5), "path of a TOML file or a Config, and was int"),
    ],
)
def test_an_argument_of_another_type_is_an_error_of_vlmkit(model, call, message):
    with pytest.raises(VlmkitError, match=message):
        call(model)


def test_an_error_names_its_file(model, tmp_path):
    paths = [tmp_path / name for name in ("a.png", "b.jpg", "c.png", "d.svg")]
    whole = encoded(picture=PIL.Image.effect_noise((64, 64), 50))
    contents = [encoded(), whole[: len(whole) // 2], b"", b"<svg/>"]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    for path, problem in zip(paths[1:], ("is broken", "is empty", "an SVG drawing"), strict=True):
        with pytest.raises(MediaError, match=problem) as caught:
            model.generate("what?", images=[paths[0], path])
        assert str(caught.value).startswith(repr(str(path)))
        assert caught.value.index == 1
    with pytest.raises(MediaError, match="cannot be read: No such file"):
        model.generate("what?", images=tmp_path / "none.png")


def test_several_pages_are_several_images(model):
    pages = [PIL.Image.new("RGB", (9 + n, 7), "teal") for n in range(3)]
    content = encoded("TIFF", pages[0], save_all=True, append_images=pages[1:])
    done = model.generate("what?", images=content)
    assert [image.page for image in done.usage.images] == [1, 2, 3]
    assert all(f"{9 + n}x7" in done.text for n in range(3))


def test_the_repr_of_a_model_and_of_an_answer_is_short(model):
    done = model.generate("hello " * 100)
    assert isinstance(done, Completion)
    assert (
        repr(model)
        == f"Model('mock', takes text and image, {model.facts.limits.max_sequence_tokens} tokens)"
    )
    assert len(repr(done)) < 250
    assert repr(done).startswith("Completion('hello hello")
    assert "finish_reason='stop'" in repr(done)
    assert len(repr(done.choices)) < 2000


def test_a_notebook_shows_the_stages_of_loading(monkeypatch):
    """IPython is simulated: its kernel needs sockets and a minute."""
    shown = []

    class Handle:
        def update(self, data, *, raw):
            shown.append(data["text/plain"])

    def display(data, *, raw, display_id):
        shown.append(data["text/plain"])
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    vlmkit.load("mock").close()
    assert shown[0] == "loading model files ..."
    assert shown[-1].startswith("ready after ")
    del shell.kernel
    assert notebook_progress() is None


@pytest.mark.parametrize(
    ("content", "distribution", "other"),
    [
        (b"%PDF-1.7\n", "vlmkit-pdf", "export its pages as PNG"),
        (b"\0\0\0\x18ftypheic", "vlmkit-heif", "save it as JPEG"),
        (b"\0\0\0\x18ftypmif1", "vlmkit-heif", "save it as JPEG"),
    ],
)
def test_the_install_command_for_a_file_type_is_shown_only_to_the_operator(
    content, distribution, other, tmp_path, capsys
):
    path = tmp_path / "file"
    path.write_bytes(content)
    expected = f"{install_command(distribution)}; or {other}"
    with (
        vlmkit.load("mock", plugins={"only": ["vlmkit-mock"]}) as model,
        pytest.raises(MediaError) as caught,
    ):
        model.generate("what?", images=path)
    assert caught.value.hint == expected

    with (
        vlmkit.load("mock", plugins={"only": ["vlmkit-mock"]}) as model,
        pytest.raises(MediaError) as caught,
    ):
        model.generate("what?", images=content)  # as a server gets it
    assert caught.value.hint == f"install {distribution}, or {other}"

    only = ("--set", 'plugins.only=["vlmkit-mock"]')
    assert cli.run(["ask", "mock", "what?", "--image", str(path), *only]) == 1
    assert capsys.readouterr().err.endswith(f"hint: {expected}\n")


def test_a_folder_is_no_image(model, tmp_path):
    with pytest.raises(MediaError, match="cannot be read") as caught:
        model.generate("what?", images=tmp_path)
    assert caught.value.hint == "it is a folder: name the files in it"
