"""Prompts with documents: order of pages, token limits, and the file that an error names."""

import io
import re
from pathlib import Path

import pytest
from documents import scanned, written
from PIL import Image as PilImage

import vlmkit
from vlmkit.errors import ImageError, MediaError, RequestError
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.pages import Pages

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture(scope="module")
def model():
    with vlmkit.load("mock", media_loaders={"pdf": {"timeout_s": 1000.0}}) as model:
        yield model


def png(width, height):
    content = io.BytesIO()
    PilImage.new("RGB", (width, height)).save(content, "PNG")
    return content.getvalue()


def refused(model, *parts):
    with pytest.raises(RequestError) as caught:
        model.generate([Message("user", (*parts, TextPart("?")))])
    return caught.value


def test_pages_replace_their_document_in_place(model):
    image = ImagePart(vlmkit.Image.open(png(30, 20)))
    parts = (TextPart("a"), image, FilePart(scanned(2)), TextPart("b"), FilePart(png(50, 40)))
    done = model.generate([Message("user", parts)])
    assert [image.transform.upright_size for image in done.usage.images] == [
        (20, 30),
        (200, 400),
        (200, 400),
        (40, 50),
    ]
    assert [image.page for image in done.usage.images] == [None, 1, 2, None]


def test_chosen_pages_alone_are_shown(model):
    done = model.generate("?", media=[FilePart(scanned(4), pages=Pages.of("2,4"))])
    assert [image.page for image in done.usage.images] == [2, 4]
    assert len(done.usage.images) == 2


def test_equal_requests_render_a_document_once(model):
    document = FilePart(written("The same page"))
    for is_cached in (False, True):
        (image,) = model.generate("?", media=[document]).usage.images
        assert image.is_cached == is_cached


def test_pages_share_a_token_limit(model):
    whole = model.generate("?", media=[FilePart(scanned(3))]).usage.image_tokens
    most = sum(whole) // 2
    less = model.generate("?", media=[FilePart(scanned(3), max_tokens=most)]).usage.image_tokens
    assert len(less) == 3
    assert 0 < sum(less) <= most
    each = FilePart(scanned(3), max_tokens=most, options=ImageOptions(max_tokens=1))
    assert model.generate("?", media=[each]).usage.image_tokens == (1, 1, 1)
    error = refused(model, FilePart(scanned(3), max_tokens=2))
    assert (error.code, str(error)) == ("image_over_budget", "3 pages need more than 2 tokens")


def test_an_error_names_the_file_that_it_concerns(model):
    image = ImagePart(vlmkit.Image.open(png(30, 20)))
    error = refused(model, image, FilePart(scanned(2)), FilePart(b"%PDF-"), image)
    assert isinstance(error, MediaError)
    assert error.index == 2
    broken = ImagePart(vlmkit.Image.open(png(300, 200)[:-30]))
    error = refused(model, FilePart(scanned(3)), broken)
    assert isinstance(error, ImageError)
    assert error.index == 1
    assert refused(model, image, FilePart(b"once upon a time")).index == 1


def test_pages_count_as_images(model):
    most = model.facts.bounds.max_images
    image = ImagePart(vlmkit.Image.open(png(30, 20)))
    error = refused(model, FilePart(scanned(most // 2)), image, FilePart(scanned(most // 2)))
    assert (error.code, error.index) == ("too_many_images", 2)
    assert error.hint == f'choose fewer: pages "1-{most // 2 - 1}"'


def test_pages_of_a_file_without_pages_are_refused(model):
    error = refused(model, FilePart(png(30, 20), pages=Pages.of("1")))
    assert str(error) == "pages are chosen of a file that has none"


def test_a_file_takes_at_least_a_token():
    with pytest.raises(RequestError, match="max_tokens must be a number from 1"):
        FilePart(b"", max_tokens=0)


def test_settings_of_the_config_reach_the_loader():
    with vlmkit.load("mock", media_loaders={"pdf": {"timeout_s": 1000.0, "dpi": 72}}) as model:
        (image,) = model.generate("?", media=[scanned(1)]).usage.images
    assert image.transform.source_size == (100, 200)


def test_the_program_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("report.pdf").write_bytes(scanned(4))
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(program, {})
    assert "400x200" in capsys.readouterr().out
