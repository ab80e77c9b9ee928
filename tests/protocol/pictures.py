"""Images of the protocol cases, in the forms that clients send."""

import base64
import io

import PIL.Image


def picture(mode: str = "RGB", kind: str = "PNG", size: tuple[int, int] = (64, 48)) -> bytes:
    """Return an image file of one colour."""
    file = io.BytesIO()
    PIL.Image.new(mode, size, 96 if mode in ("L", "P") else (30, 60, 90, 255)[: len(mode)]).save(
        file, kind
    )
    return file.getvalue()


def encoded(data: bytes) -> str:
    """Return a file in base64."""
    return base64.b64encode(data).decode()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    """Return a file as a URL."""
    return f"data:{media_type};base64,{encoded(data)}"


def shown(url: str, text: str = "What is this?") -> list[dict[str, object]]:
    """Return a conversation of an image and a question."""
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": text},
    ]
    return [{"role": "user", "content": parts}]


PNG = data_url(picture())
