"""The loader keeps vlmkit's contract, and shows pages in their order."""

import io

import PIL.Image
import pytest

from vlmkit.errors import MediaError
from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.pages import Pages
from vlmkit_testing import MediaLoaderContract, picture
from vlmkit_yourname.plugin import TiffLoader


def scan(*seeds: int) -> bytes:
    """Return a file with a page for each seed."""
    return saved(*(picture(seed=seed).to_pil() for seed in seeds))


def saved(first: PIL.Image.Image, *others: PIL.Image.Image) -> bytes:
    file = io.BytesIO()
    first.save(file, "TIFF", save_all=True, append_images=others, compression="tiff_adobe_deflate")
    return file.getvalue()


class TestTiffLoader(MediaLoaderContract):
    def make(self) -> MediaLoader:
        return TiffLoader()

    def files(self) -> list[bytes]:
        return [scan(0), scan(1, 2, 3)]

    def swelling(self) -> bytes:
        return saved(PIL.Image.new("RGB", (3000, 2000)))


def test_pages_come_in_their_order() -> None:
    parts = TiffLoader().load(scan(1, 2, 3), PipelineSettings())
    assert [part.page for part in parts] == [1, 2, 3]
    assert [part.image.digest for part in parts] == [picture(seed=i).digest for i in (1, 2, 3)]


def test_chosen_pages_of_a_long_scan_are_shown() -> None:
    bounds = PipelineSettings(max_images=2)
    assert [p.page for p in TiffLoader().load_pages(scan(1, 2, 3), Pages.of("3"), bounds)] == [3]
    with pytest.raises(MediaError, match="more than the 2 pages"):
        TiffLoader().load(scan(1, 2, 3), bounds)
