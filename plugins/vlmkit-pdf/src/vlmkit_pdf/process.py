"""Renders a file's pages in a separate process.

The process ends when the pages are rendered, its time is up, the request is cancelled, or its
parent ends for whatever reason.

PDFium is written in C++ and reads hostile files. A file that crashes it, hangs it or exhausts
memory ends its process and one request. That process has none of the server's sockets and none of
the secrets in its environment. But it is no sandbox: an attacker who controls it has the rights of
the user who runs the server.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from vlmkit.errors import MediaError
from vlmkit.image_files.decoder_process import Answer, DecoderEnded, decoder_process
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.pages import Pages
from vlmkit_pdf import worker
from vlmkit_pdf.settings import PdfSettings

MAX_FOUND_BYTES = 1024


class RenderedPage(NamedTuple):
    """A page: its number, from 1, and a PNG file."""

    number: int
    content: bytes


def render_pages(
    data: bytes,
    pages: Pages | None,
    settings: PdfSettings,
    bounds: PipelineSettings,
    cancellation: Cancellation,
) -> list[RenderedPage]:
    """Return images of a file's pages, in order.

    Args:
        data: the file.
        pages: the selected pages; None for all.
        settings: the settings for rendering, and the limits of one file.
        bounds: the limits of one request.
        cancellation: the cancellation of the request.

    Raises:
        RequestCancelled: the request was cancelled.
        MediaError: the file is locked or broken, has no such pages or too many, or takes too much.
    """
    cancellation.check()
    job = {
        "num_bytes": len(data),
        "pages": None if pages is None else pages.runs,
        "max_pages": bounds.max_images,
        "max_pixels": min(settings.max_page_pixels, bounds.images.max_pixels),
        "dpi": settings.dpi,
        "timeout_s": settings.timeout_s,
        "memory_bytes": settings.memory_bytes,
    }
    try:
        with decoder_process(
            worker.__file__,
            job,
            data,
            timeout_s=settings.timeout_s,
            calling=cancellation.calling,
        ) as answer:
            return list(_received(answer, pages, bounds))
    except DecoderEnded as error:
        cancellation.check()
        if error.is_late:
            raise MediaError(
                f"a document takes longer than {settings.timeout_s:g} s to open",
                param="messages",
                hint="choose fewer pages",
            ) from None
        raise MediaError(
            "a document is broken, or needs more memory than is allowed", param="messages"
        ) from None


def _received(
    answer: Answer, pages: Pages | None, bounds: PipelineSettings
) -> Iterator[RenderedPage]:
    """Yield the pages of an answer, which is not trusted."""
    found = json.loads(_frame(answer, MAX_FOUND_BYTES))
    if found.get("problem"):
        _refuse(found, pages, bounds)
    numbers = range(1, found["num_pages"] + 1) if pages is None else pages
    if len(numbers) > bounds.max_images:
        raise EOFError
    num_left = bounds.max_media_bytes
    for number in numbers:
        content = _frame(answer, min(num_left, bounds.images.max_bytes))
        num_left -= len(content)
        yield RenderedPage(number, content)


def _frame(answer: Answer, max_bytes: int) -> bytes:
    """Read one frame."""
    num_bytes = int.from_bytes(answer.read(worker.LENGTH_BYTES), "big")
    if num_bytes > max_bytes:
        raise MediaError(
            f"the pages of a document are over {max_bytes} bytes",
            param="messages",
            code="media_too_large",
            hint="choose fewer pages",
        )
    return answer.read(num_bytes)


def _refuse(found: dict[str, Any], pages: Pages | None, bounds: PipelineSettings) -> NoReturn:
    """Raise the error of a problem."""
    if found["problem"] == "locked":
        raise MediaError("a document is locked with a password", param="messages")
    if found["problem"] == "broken":
        raise MediaError("a document is no readable PDF file", param="messages")
    num_pages = int(found["num_pages"])
    (pages or Pages(((1, num_pages),))).within(num_pages, bounds.max_images)
    raise EOFError  # the pages exist, so the process's answer is wrong
