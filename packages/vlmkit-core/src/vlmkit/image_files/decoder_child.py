"""The script of a process that decodes one image: file from stdin, pixels to stdout.

A line of JSON before the file names the decoder function and its limits of memory and time. The
answer is a line of JSON with the size, then rows of RGB; or a line that names the problem.
"""

import contextlib
import importlib
import json
import os
import sys
import threading
from typing import BinaryIO

NICENESS = 10  # answers on the same CPUs take precedence


def main() -> None:
    """Decode one file."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries must not mix with pixels
    job = json.loads(sys.stdin.buffer.readline())
    content = sys.stdin.buffer.read(job["num_bytes"])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with answer:
        _answer(job["decoder"], content, job["memory_bytes"], job["cpu_s"], answer)
        answer.flush()
        os._exit(0)


def _end_with_parent() -> None:
    """End this process when its parent closes the pipe."""
    os.read(0, 1)
    os._exit(1)


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """Lower this process's priority, and limit its further memory and time where possible."""
    if sys.platform != "win32":
        import resource

        os.nice(NICENESS)
        limits = {"RLIMIT_CPU": cpu_s, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0}
        with contextlib.suppress(OSError, ValueError):
            with open("/proc/self/statm") as file:  # noqa: PTH123 - it costs an import
                used = int(file.read().split()[0]) * resource.getpagesize()
            limits["RLIMIT_AS"] = used + memory_bytes
        for name, limit in limits.items():
            with contextlib.suppress(AttributeError, OSError, ValueError):  # unknown or unsupported
                resource.setrlimit(getattr(resource, name), (limit, limit))


def _answer(decoder: str, content: bytes, memory_bytes: int, cpu_s: int, answer: BinaryIO) -> None:
    module, _, name = decoder.partition(":")
    try:
        import PIL.Image

        from vlmkit.image_files.pixels import strips, upright_of

        PIL.Image.MAX_IMAGE_PIXELS = None  # the parent checked the size against its settings
        load = getattr(importlib.import_module(module), name)
        _limit(memory_bytes, cpu_s)
        pixels = upright_of(load(content))
    except ImportError:
        _write_line(answer, problem="missing")
    except MemoryError:
        _write_line(answer, problem="memory")
    except Exception as error:  # noqa: BLE001 - a decoder may raise anything
        is_short = str(error).startswith("out of memory")
        _write_line(answer, problem="memory" if is_short else "broken")
    else:
        _write_line(answer, size=pixels.picture.size, turned=pixels.turned)
        answer.writelines(
            pixels.picture.crop(strip).tobytes() for strip in strips(pixels.picture.size)
        )


def _write_line(answer: BinaryIO, **result: object) -> None:
    answer.write(json.dumps(result).encode() + b"\n")


if __name__ == "__main__":
    main()
