"""The error for an image file that has more parts than usual image files have."""

from vlmkit.errors import ImageError


def too_complex(kind: str, problem: str) -> ImageError:
    """Return the error for a file.

    Args:
        kind: the kind of file, such as ``a PNG file``.
        problem: what the file has too much of.
    """
    return ImageError(
        f"image is {kind} of {problem}",
        code="image_too_complex",
        hint="save it again, as an ordinary PNG or JPEG file",
    )
