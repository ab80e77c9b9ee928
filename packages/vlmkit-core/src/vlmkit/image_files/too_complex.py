"""The error of a picture whose file has more parts than pictures have."""

from vlmkit.errors import ImageError


def too_complex(kind: str, problem: str) -> ImageError:
    """Return the refusal of a file.

    Args:
        kind: what the file is, such as ``a PNG file``.
        problem: what it has too much of.
    """
    return ImageError(
        f"image is {kind} of {problem}",
        code="image_too_complex",
        hint="save it again, as an ordinary PNG or JPEG file",
    )
