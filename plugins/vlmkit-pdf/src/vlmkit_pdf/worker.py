"""The process that opens one PDF file: the file comes by stdin, pictures of its pages go to stdout.

It is run as a file, knows nothing of vlmkit and holds nothing but the file. A line of JSON says
what is wanted; then the file follows. The answer is frames, each behind its length: what was found,
as JSON, and then a PNG file for each page. It ends with a code when PDFium crashes, when it takes
more than its limits, and when stdin is closed, as it is when its parent ends.
"""

import contextlib
import io
import json
import math
import os
import sys
import threading
from typing import Any, BinaryIO

LENGTH_BYTES = 4
NICENESS = 10  # answers that are computed on the same CPUs go first


def main() -> None:
    """Answer one job."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no frame
    job = json.loads(sys.stdin.buffer.readline())
    _limit(job["memory_bytes"], math.ceil(job["timeout_s"]))
    data = sys.stdin.buffer.read(job["num_bytes"])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with answer:
        _answer(job, data, answer)


def _end_with_parent() -> None:
    """End this process when its parent has; PDFium lets other threads run while it draws."""
    os.read(0, 1)
    os._exit(1)


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """Lower this process's priority and bound what it can take, where the system knows how."""
    bounds = {"RLIMIT_AS": memory_bytes, "RLIMIT_CPU": cpu_s, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0}
    if sys.platform != "win32":
        import resource

        os.nice(NICENESS)
        for name, most in bounds.items():
            with contextlib.suppress(AttributeError, OSError, ValueError):  # unknown, or not here
                resource.setrlimit(getattr(resource, name), (most, most))


def _answer(job: dict[str, Any], data: bytes, answer: BinaryIO) -> None:
    import pypdfium2 as pdfium

    def tell(**found: Any) -> None:
        _write(answer, json.dumps(found).encode())

    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        locked = (pdfium.raw.FPDF_ERR_PASSWORD, pdfium.raw.FPDF_ERR_SECURITY)
        tell(problem="locked" if error.err_code in locked else "broken")
        return
    document.init_forms()  # without it, what is filled in is not drawn
    num_pages = len(document)
    wanted = job["pages"] or [[1, num_pages]]
    if wanted[-1][1] > num_pages:
        tell(problem="absent", num_pages=num_pages)
    elif sum(last - first + 1 for first, last in wanted) > job["max_pages"]:
        tell(problem="many", num_pages=num_pages)
    else:
        tell(num_pages=num_pages)
        for first, last in wanted:
            for number in range(first, last + 1):
                _write(answer, _drawn(document[number - 1], job["dpi"] / 72, job["max_pixels"]))


def _drawn(page: Any, scale: float, max_pixels: int) -> bytes:
    """Return a page as a PNG file, drawn smaller where it is too large."""
    width, height = page.get_size()
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise ValueError("a page has no size")
    scale = min(scale, math.sqrt(max_pixels / width / height))
    if math.ceil(width * scale) * math.ceil(height * scale) > 2 * max_pixels:
        raise ValueError("a page is a line")
    bitmap = page.render(scale=scale, rev_byteorder=True)
    content = io.BytesIO()
    bitmap.to_pil().save(content, "PNG", compress_level=1)
    bitmap.close()
    page.close()
    return content.getvalue()


def _write(answer: BinaryIO, frame: bytes) -> None:
    answer.write(len(frame).to_bytes(LENGTH_BYTES, "big"))
    answer.write(frame)
    answer.flush()


if __name__ == "__main__":
    main()
