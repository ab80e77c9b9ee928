"""The process that renders one PDF file: it reads the file from stdin and writes images to stdout.

It runs as a script, imports nothing of vlmkit and holds nothing but the file. A line of JSON states
the job; then the file follows. The answer consists of frames, each with its length before it: the
result as JSON, then a PNG file for each page. The process exits when PDFium crashes, when it
exceeds its limits, and when stdin closes, which it does when the parent ends.
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
NICENESS = 10  # model steps on the same CPUs have priority


def main() -> None:
    """Process one job."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with frames
    job = json.loads(sys.stdin.buffer.readline())
    _limit(job["memory_bytes"], math.ceil(job["timeout_s"]))
    data = sys.stdin.buffer.read(job["num_bytes"])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with answer:
        _answer(job, data, answer)


def _end_with_parent() -> None:
    """End this process when its parent has ended; PDFium releases the GIL while it renders."""
    os.read(0, 1)
    os._exit(1)


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """Lower this process's priority and limit its resources, where the system can."""
    bounds = {"RLIMIT_AS": memory_bytes, "RLIMIT_CPU": cpu_s, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0}
    if sys.platform != "win32":
        import resource

        os.nice(NICENESS)
        for name, most in bounds.items():
            with contextlib.suppress(AttributeError, OSError, ValueError):  # unknown, or not here
                resource.setrlimit(getattr(resource, name), (most, most))


def _answer(job: dict[str, Any], data: bytes, answer: BinaryIO) -> None:
    import pypdfium2 as pdfium

    def send(**found: Any) -> None:
        _write(answer, json.dumps(found).encode())

    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        locked = (pdfium.raw.FPDF_ERR_PASSWORD, pdfium.raw.FPDF_ERR_SECURITY)
        send(problem="locked" if error.err_code in locked else "broken")
        return
    document.init_forms()  # otherwise form fields are not rendered
    num_pages = len(document)
    wanted = job["pages"] or [[1, num_pages]]
    if wanted[-1][1] > num_pages:
        send(problem="absent", num_pages=num_pages)
    elif sum(last - first + 1 for first, last in wanted) > job["max_pages"]:
        send(problem="many", num_pages=num_pages)
    else:
        send(num_pages=num_pages)
        for first, last in wanted:
            for number in range(first, last + 1):
                _write(answer, _rendered(document[number - 1], job["dpi"] / 72, job["max_pixels"]))


def _rendered(page: Any, scale: float, max_pixels: int) -> bytes:
    """Return a page as a PNG file, scaled down if it is too large."""
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
