"""The media loader for HEIC files: the primary image of each, upright.

Reads sizes from the file's boxes and decodes nothing. A separate process decodes the pixels when a
prompt is built, within its share of the decode memory.
"""

from vlmkit.errors import ImageError
from vlmkit.image_files.decode_cost import FormatCost, decode_cost
from vlmkit.image_files.header import Header
from vlmkit.image_files.iso_image import IsoHeader, is_heic, read_iso_header
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart

DECODER = "vlmkit_heif.decoding:picture"
COST = FormatCost(pixel_bytes=4, file_ratio=4, is_isolated=True)  # planes are added to it


class HeifLoader:
    """Opens HEIC files."""

    def recognises(self, data: bytes) -> bool:
        """Tell whether a file starts like a HEIC file; AVIF files need no plugin."""
        return is_heic(data)

    def load(self, data: bytes, bounds: PipelineSettings) -> list[ImagePart]:
        """Return the primary image.

        Raises:
            ImageError: the file is broken, or larger than the bounds allow.
        """
        try:
            header = read_iso_header(data, "a HEIC file")
        except ValueError as error:
            raise ImageError(
                "image is a HEIC image whose header cannot be read: broken or cut off",
                hint="save it again, as JPEG",
            ) from error
        return [ImagePart(_image(header, data, bounds))]


def _image(header: IsoHeader, data: bytes, bounds: PipelineSettings) -> Image:
    width, height = header.coded_size
    cost = decode_cost(
        COST,
        "RGBA",
        header.coded_size,
        num_file_bytes=len(data),
        is_copied=True,
        may_turn=header.is_turned,
        buffer_bytes=int(header.plane_bytes * (1 + header.is_turned) * width * height),
    )
    sizes = Header(header.size, header.upright_size, header.is_turned)
    return Image.of_decoder(DECODER, data, sizes, cost, bounds.images)
