"""Pictures of a file's pages, drawn by a process of its own.

The process ends when the pages are drawn, its time is over, the request is cancelled, or its parent
ends, however that ends.

PDFium reads files that were made to do harm, and is written in C++. A file that crashes it, or that
makes it go on for ever or take all memory, ends its process and one request. That process has none
of the server's sockets and none of its secrets in the environment, but it is no sandbox: whoever
takes it over has the rights of the user who runs the server.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from vlmkit.ask.pages import Pages
from vlmkit.errors import MediaError
from vlmkit.seams.cancellation import Cancellation
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit_pdf import worker
from vlmkit_pdf.settings import PdfSettings

MAX_FOUND_BYTES = 1024
_NEEDED = (
    *("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("SYSTEMROOT", "TEMP", "TMP"),
)


class Drawn(NamedTuple):
    """A page: its number, from 1, and a PNG file."""

    number: int
    content: bytes


def drawn_pages(
    data: bytes,
    pages: Pages | None,
    settings: PdfSettings,
    bounds: PipelineSettings,
    cancellation: Cancellation,
) -> list[Drawn]:
    """Return pictures of a file's pages, in order.

    Args:
        data: the file.
        pages: which of them; all when None.
        settings: how they are drawn, and what that may take.
        bounds: what is refused of one request.
        cancellation: of the request.

    Raises:
        RequestCancelled: the request was cancelled.
        MediaError: it is locked or broken, has no such pages or too many, or takes too much.
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
    is_late = threading.Event()
    with subprocess.Popen(  # noqa: S603 - a file of this package
        [sys.executable, "-P", str(Path(worker.__file__))],
        env={name: os.environ[name] for name in _NEEDED if name in os.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the server's to answer
    ) as process:
        clock = threading.Timer(settings.timeout_s, _end, (process, is_late))
        clock.start()
        try:
            with cancellation.calling(process.kill):
                _send(process.stdin, json.dumps(job).encode() + b"\n", data)
                return list(_received(process.stdout, pages, bounds))
        except EOFError:
            cancellation.check()
            if is_late.is_set():
                raise MediaError(
                    f"a document takes longer than {settings.timeout_s:g} s to open",
                    param="messages",
                    hint="choose fewer pages",
                ) from None
            raise MediaError(
                "a document is broken, or needs more memory than is allowed", param="messages"
            ) from None
        finally:
            clock.cancel()
            process.kill()
            clock.join()


def _end(process: "subprocess.Popen[bytes]", is_late: threading.Event) -> None:
    is_late.set()
    process.kill()


def _send(stdin: IO[bytes] | None, *pieces: bytes) -> None:
    """Send what the process reads; its end of the pipe stays open until it is to end."""
    assert stdin is not None  # noqa: S101 - it is a pipe
    try:
        for piece in pieces:
            stdin.write(piece)
        stdin.flush()
    except OSError as error:  # it has ended
        raise EOFError from error


def _received(
    stdout: IO[bytes] | None, pages: Pages | None, bounds: PipelineSettings
) -> Iterator[Drawn]:
    """Yield what comes, of which nothing is believed."""
    assert stdout is not None  # noqa: S101 - it is a pipe
    found = json.loads(_frame(stdout, MAX_FOUND_BYTES))
    if found.get("problem"):
        _refuse(found, pages, bounds)
    numbers = range(1, found["num_pages"] + 1) if pages is None else pages
    if len(numbers) > bounds.max_images:
        raise EOFError
    num_left = bounds.max_media_bytes
    for number in numbers:
        content = _frame(stdout, min(num_left, bounds.images.max_bytes))
        num_left -= len(content)
        yield Drawn(number, content)


def _frame(stdout: IO[bytes], max_bytes: int) -> bytes:
    """Read one frame."""
    num_bytes = int.from_bytes(_whole(stdout, worker.LENGTH_BYTES), "big")
    if num_bytes > max_bytes:
        raise MediaError(
            f"the pages of a document are over {max_bytes} bytes",
            param="messages",
            code="media_too_large",
            hint="choose fewer pages",
        )
    return _whole(stdout, num_bytes)


def _whole(stdout: IO[bytes], num_bytes: int) -> bytes:
    content = stdout.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError
    return content


def _refuse(found: dict[str, Any], pages: Pages | None, bounds: PipelineSettings) -> NoReturn:
    """Raise what a problem means."""
    if found["problem"] == "locked":
        raise MediaError("a document is locked with a password", param="messages")
    if found["problem"] == "broken":
        raise MediaError("a document is no readable PDF file", param="messages")
    num_pages, most = int(found["num_pages"]), bounds.max_images
    if found["problem"] == "absent":
        raise MediaError(
            f"a document of {num_pages} pages does not have all that are chosen",
            param="messages",
            code="pages_not_found",
        )
    raise MediaError(
        f"{num_pages if pages is None else len(pages)} pages are over the limit of {most} images",
        param="messages",
        code="too_many_images",
        hint=f'choose fewer: pages "1-{most}"' if most else "",
    )
