"""Pages of PDF files as images: selection, size, and refused files."""

import contextlib
import functools
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from documents import COLOURS, endless, locked, scanned, written
from hypothesis import given, settings as examples, strategies as st

from vlmkit.errors import MediaError, RequestError
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.pages import Pages
from vlmkit_pdf import process
from vlmkit_pdf.loader import PdfLoader
from vlmkit_pdf.settings import PdfSettings
from vlmkit_testing import MediaLoaderContract

BOUNDS = PipelineSettings()
PATIENT_S = 1000.0  # the machine may be busy
NAMED = {(255, 0, 0): "red", (0, 128, 0): "green", (0, 0, 255): "blue", (0, 0, 0): "black"}


class TestPdfLoader(MediaLoaderContract):
    num_harmed = 6

    def make(self) -> PdfLoader:
        return PdfLoader(PdfSettings(timeout_s=PATIENT_S))

    def files(self) -> list[bytes]:
        return [scanned(2), written("One page")]

    def lengthy(self) -> bytes:
        return endless()

    @pytest.mark.slow
    def test_pages_share_the_bound_of_bytes(self) -> None:
        super().test_pages_share_the_bound_of_bytes()


@pytest.mark.slow
class TestPdfLoaderOnText(TestPdfLoader):
    """The images of its pages are larger than the file."""

    def files(self) -> list[bytes]:
        return [written("One page", "Two pages"), written("Another")]


def shown(data, pages=None, bounds=BOUNDS, **settings):
    loader = PdfLoader(PdfSettings(**{"timeout_s": PATIENT_S, **settings}))
    if pages is None:
        return loader.load(data, bounds)
    return loader.load_pages(data, Pages.of(pages), bounds)


def refused(data, pages=None, bounds=BOUNDS, **settings):
    with pytest.raises(MediaError) as caught:
        shown(data, pages, bounds, **settings)
    return caught.value


def colour(part):
    """Return the name of the colour in the centre of an image, within rounding of PDFium."""
    image = part.image.to_pil()
    found = image.getpixel((image.width // 2, image.height // 2))
    near = (n for rgb, n in NAMED.items() if _distance(rgb, found) < 3)
    return next(near, "white")


def _distance(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def test_pages_become_images_in_the_order_of_the_document():
    parts = shown(scanned(5))
    assert [part.page for part in parts] == [1, 2, 3, 4, 5]
    assert [colour(part) for part in parts] == list(COLOURS)


def test_chosen_pages_are_shown_and_no_others():
    parts = shown(scanned(5), "2,4-5")
    assert [part.page for part in parts] == [2, 4, 5]
    assert [colour(part) for part in parts] == ["green", "white", "black"]


def test_text_on_a_page_is_rendered():
    empty, full = shown(written("", "Hello"))
    assert len(set(empty.image.to_pil().get_flattened_data())) == 1
    assert len(set(full.image.to_pil().get_flattened_data())) > 16


def test_a_page_has_the_configured_resolution_within_the_pixel_limit():
    page = written("x", size=(72, 144))
    assert [part.image.source_size for part in shown(page)] == [(144, 288)]
    assert [part.image.source_size for part in shown(page, dpi=72)] == [(72, 144)]
    for size in ((14_400, 14_400), (1e6, 1e6)):
        (part,) = shown(written("x", size=size), max_page_pixels=40_000)
        assert part.image.source_size == (200, 200)
    small = PipelineSettings(images=ImageLimits(max_pixels=10_000))
    (part,) = shown(written("x", size=(1000, 1000)), bounds=small)
    assert part.image.source_size == (100, 100)


def test_a_page_that_is_a_line_is_refused():
    assert "times as long" in str(refused(written("x", size=(14_400, 1))))


def test_a_document_with_too_many_pages_is_refused_as_a_whole():
    error = refused(scanned(17))
    assert (error.code, str(error)) == (
        "too_many_images",
        "17 pages are over the limit of 16 images",
    )
    assert error.hint == 'choose fewer: pages "1-16"'
    assert len(shown(scanned(17), "2-17")) == 16
    few = msgspec.structs.replace(BOUNDS, max_images=2)
    assert refused(scanned(5), "1,3,5", few).code == "too_many_images"
    assert len(shown(scanned(5), "1,5", few)) == 2


def test_a_missing_page_is_refused():
    error = refused(scanned(2), "2-3")
    assert error.code == "pages_not_found"
    assert str(error) == "a document of 2 pages does not have all that are chosen"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (locked(), "locked with a password"),
        (b"%PDF-1.7\nno more", "no readable PDF file"),
        (scanned(1)[:60], "no readable PDF file"),
        (written(), "no readable PDF file"),
    ],
)
def test_an_unreadable_file_is_refused_with_the_reason(data, problem):
    assert problem in str(refused(data))


def test_page_images_over_the_limits_are_refused():
    page = written("x" * 20)
    few_bytes = PipelineSettings(max_media_bytes=len(page) + 1)
    error = refused(page, bounds=few_bytes)
    assert error.code == "media_too_large"
    assert "over 1 bytes" not in str(error)


def test_a_document_that_takes_too_long_is_refused():
    long = written("x", stream=b"0 0 m 200 100 150 3 7 8 c S\n" * 500_000)
    error = refused(long, timeout_s=0.3)
    assert "takes longer than 0.3 s" in str(error)


def test_a_process_that_dies_fails_only_its_request(monkeypatch, tmp_path):
    for number, said in enumerate(["", "import os; os.abort()", "print('x' * 10_000)"]):
        dying = tmp_path / f"dying{number}.py"
        dying.write_text(said)
        with monkeypatch.context() as patched:
            patched.setattr(process.worker, "__file__", str(dying))
            with pytest.raises((MediaError, ValueError)):
                shown(scanned(1))
        assert colour(shown(scanned(1))[0]) == "red"


def test_a_process_does_not_get_the_servers_environment(monkeypatch, tmp_path):
    spy = tmp_path / "spy.py"
    seen = str(tmp_path / "seen")
    spy.write_text(f"import os; open({seen!r}, 'w').write(repr(dict(os.environ)))")
    monkeypatch.setenv("SECRET_KEY", "hidden")
    monkeypatch.setattr(process.worker, "__file__", str(spy))
    refused(scanned(1))
    assert "hidden" not in (tmp_path / "seen").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")
def test_a_process_ends_with_its_parent(tmp_path):
    program = (
        "import os, subprocess, sys, threading\n"
        "from documents import endless\n"
        "from vlmkit.settings.pipeline import PipelineSettings\n"
        "from vlmkit_pdf.loader import PdfLoader\n"
        "from vlmkit_pdf.settings import PdfSettings\n"
        "started = subprocess.Popen.__init__\n"
        "def start(self, *args, **options):\n"
        "    started(self, *args, **options)\n"
        "    print(self.pid, flush=True)\n"
        "subprocess.Popen.__init__ = start\n"
        "PdfLoader(PdfSettings(timeout_s=1000)).load(endless(), PipelineSettings())\n"
    )
    folder = Path(__file__).parent
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE)
    drawing = Path("/proc") / parent.stdout.readline().decode().strip()
    assert eventually(lambda: cpu_ticks(drawing) > 50)
    parent.kill()
    parent.communicate()
    assert eventually(lambda: not cpu_ticks(drawing))


def eventually(is_true):
    deadline = time.monotonic() + 300
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def cpu_ticks(process):
    """Return the CPU time of a process; 0 when it has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[11]) + int(fields[12])


@pytest.mark.posix
def test_memory_of_the_process_is_bounded():
    hungry = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import worker; worker._limit(300 * 2**20, 9)\n"
        "bytearray(600 * 2**20)"
    )
    folder = Path(process.worker.__file__).parent
    done = subprocess.run([sys.executable, "-c", hungry, folder], capture_output=True, check=False)
    assert done.returncode != 0
    assert sys.platform != "linux" or b"MemoryError" in done.stderr


@functools.cache
def tree() -> bytes:
    return written("One", "Two")


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=8))
@examples(max_examples=examples.default.max_examples // 10)  # each document runs in a process
def test_a_document_with_changed_bytes_is_opened_or_refused(place, put):
    data = tree()
    start = place % len(data)
    changed = data[:start] + put + data[start + len(put) :]
    with contextlib.suppress(RequestError):
        assert shown(changed)
