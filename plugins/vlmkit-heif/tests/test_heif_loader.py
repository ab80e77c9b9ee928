"""HEIC images: sizes from the header, pixels of libheif, and refused files."""

import io
import subprocess
import sys

import PIL.Image
import pillow_heif
import pytest

import vlmkit
from vlmkit.errors import ImageError, MediaError
from vlmkit.image_files.iso_image import read_iso_header
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit_heif import decoding
from vlmkit_heif.loader import HeifLoader
from vlmkit_testing import MediaLoaderContract

BOUNDS = PipelineSettings()


def heic(size=(64, 48), mode="RGB", turn=1, **options):
    shade = PIL.Image.linear_gradient("L").resize(size)
    drawing = PIL.Image.merge("RGB", [shade, shade.transpose(0), shade]).convert(mode)
    exif = PIL.Image.Exif()
    exif[0x0112] = turn
    file = io.BytesIO()
    pillow_heif.from_pillow(drawing).save(file, quality=60, exif=exif.tobytes(), **options)
    return file.getvalue()


def shown(data, bounds=BOUNDS):
    (part,) = HeifLoader().load(data, bounds)
    return part.image


class TestHeifLoader(MediaLoaderContract):
    num_harmed = 8

    def make(self):
        return HeifLoader()

    def files(self):
        return [heic(), heic((40, 30))]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_pixels_equal_those_of_libheif(mode):
    data = heic(mode=mode)
    image = shown(data)
    expected = decoding.picture(data)
    assert (image.width, image.height) == expected.size == (64, 48)
    if mode != "RGBA":
        assert image.to_pil().tobytes() == expected.convert("RGB").tobytes()
    assert image.to_pil().mode == "RGB"


@pytest.mark.parametrize("turn", range(1, 9))
def test_the_rotation_of_an_image_is_read_from_the_header(turn):
    data = heic(turn=turn)
    image = shown(data)
    size = (64, 48) if turn < 5 else (48, 64)
    assert (image.width, image.height) == size == decoding.picture(data).size
    assert image.to_pil().size == size
    assert image.turned == (turn != 1)


def test_only_the_primary_image_is_decoded():
    images = [PIL.Image.new("RGB", (32, 24), name) for name in ("red", "blue")]
    file = pillow_heif.from_pillow(images[0])
    file.add_from_pillow(images[1])
    written = io.BytesIO()
    file.save(written, primary_index=1)
    red, _, blue = shown(written.getvalue()).to_pil().getpixel((5, 5))
    assert red < 50 < 200 < blue


def test_limits_are_checked_before_a_decoder_runs():
    few = PipelineSettings(images=ImageLimits(max_pixels=1000))
    with pytest.raises(ImageError, match="over 1000 pixels"):
        HeifLoader().load(heic(), few)


def test_an_image_whose_size_differs_from_the_header_is_refused():
    data = bytearray(heic((640, 480)))
    at = data.index(b"ispe") + 8
    data[at : at + 8] = (64).to_bytes(4, "big") + (48).to_bytes(4, "big")
    with pytest.raises(ImageError):
        shown(bytes(data)).to_pil()


@pytest.mark.parametrize("size", [0, 12, 40, 100])
def test_a_truncated_file_is_refused(size):
    with pytest.raises(MediaError):
        shown(heic()[:size]).to_pil()


@pytest.mark.slow
def test_the_memory_estimate_suffices_for_phone_photos():
    data = heic((4032, 3024))
    assert shown(data).to_pil().size == (4032, 3024)
    assert read_iso_header(data, "a HEIC file").plane_bytes <= 3


def test_the_python_api_accepts_a_path(tmp_path):
    path = tmp_path / "photo.heic"
    path.write_bytes(heic())
    with vlmkit.load("mock") as model:
        assert "64x48" in model.generate("what?", images=path).text
        path.write_bytes(heic()[:200])
        with pytest.raises(ImageError, match=r"photo\.heic"):
            model.generate("what?", images=path)


def test_the_plugin_module_imports_no_heavy_library():
    code = "import sys, vlmkit_heif.plugin; print({'PIL', 'pillow_heif'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
