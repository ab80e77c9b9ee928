"""Words of a chat message that are paths of images, and words that are text."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.cli.dropped_files import dropped

pytestmark = pytest.mark.posix  # paths and spaces are written in shell syntax


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.png", "b c.JPG", "it's.webp", "notes.txt", "50% #1?.png"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("message", "text", "names"),
    [
        ("'{folder}/a.png'", "", ["a.png"]),
        ("{folder}/b c.JPG", "", ["b c.JPG"]),
        ("{folder}/b\\ c.JPG ", "", ["b c.JPG"]),
        ("'{folder}/it'\\''s.webp' what's it?", "what's it?", ["it's.webp"]),
        ("file://{folder}/50%25%20%231%3F.png", "", ["50% #1?.png"]),
        ("file://{folder}/a.png or file:{folder}/b%20c.JPG", "or", ["a.png", "b c.JPG"]),
        ("what's in '{folder}/b c.JPG' ?", "what's in ?", ["b c.JPG"]),
        ('~/a.png "~/a.png" ./a.png', "", ["a.png"] * 3),
        ("look:\n  {folder}/a.png\n  twice", "look:\n  \n  twice", ["a.png"]),
    ],
)  # fmt: skip
def test_paths_of_files_are_images(folder: Path, message: str, text: str, names: list[str]) -> None:
    rest, paths = dropped(message.format(folder=folder))
    assert rest == text
    assert [Path(path).resolve() for path in paths] == [folder / name for name in names]


@pytest.mark.parametrize(
    "message",
    [
        "what is a.png?",
        "a.png",
        "notes.txt",
        "is '/none.png' a path",
        "{folder}/notes.txt",
        "{folder}/notes.txt is what",
        "/help",
        "{folder}",
        "it's http://127.0.0.1/a.png isn't it",
        "open '",
        "",
    ],
)
def test_all_other_words_are_text(folder: Path, message: str) -> None:
    message = message.format(folder=folder)
    assert dropped(message) == (message, [])


@pytest.mark.parametrize("message", ["/none.png", "'/none there.png' /none.gif", "file://x/a.png"])
def test_a_message_of_only_image_paths_can_name_absent_files(message: str) -> None:
    text, paths = dropped(message)
    assert text == ""
    assert paths == [word.strip("'") for word in shlex.split(message)]


@settings(max_examples=300)
@given(st.text(alphabet="'\"\\ /~.afile:png\n\0", max_size=40))
def test_any_message_is_split_without_an_error(message: str) -> None:
    text, paths = dropped(message)
    assert paths or text == message.strip() or not message.strip()
