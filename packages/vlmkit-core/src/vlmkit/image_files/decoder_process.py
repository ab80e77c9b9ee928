"""A process of its own that decodes one file, and ends when that is done.

It ends as well when its time is over, when whoever waits is cancelled, and with its parent. It has
none of the parent's sockets and variables, but the rights of the same user: it is no sandbox. A
decoder that crashes, never ends or wants all memory costs one file and not the parent.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

Calling = Callable[[Callable[[], object]], AbstractContextManager[None]]
"""Registers what ends the process early, such as ``Cancellation.calling``."""

_NEEDED = (
    *("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("SYSTEMROOT", "TEMP", "TMP"),
)


class DecoderEnded(Exception):  # noqa: N818 - whoever reads the answer says what it means
    """The process ended before its answer did.

    Attributes:
        is_late: whether its time was over.
    """

    def __init__(self, *, is_late: bool) -> None:
        super().__init__("late" if is_late else "early")
        self.is_late = is_late


class Answer:
    """What the process writes, of which nothing is believed."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, num_bytes: int) -> bytes:
        """Return so many bytes.

        Raises:
            EOFError: the process ended before them.
        """
        content = self._stream.read(num_bytes)
        if len(content) < num_bytes:
            raise EOFError
        return content

    def line(self, max_bytes: int) -> dict[str, Any]:
        """Return one line of a JSON object.

        Raises:
            EOFError: the process ended before its end, or it is none.
        """
        try:
            found = json.loads(self._stream.readline(max_bytes))
        except ValueError as error:
            raise EOFError from error
        if not isinstance(found, dict):
            raise EOFError  # noqa: TRY004 - whatever it is, it is no answer
        return found


@contextmanager
def decoder_process(
    script: str,
    job: Mapping[str, Any],
    data: bytes,
    *,
    timeout_s: float,
    calling: Calling | None = None,
) -> Iterator[Answer]:
    """Run a script with a file, and yield its answer; the process is gone when this closes.

    Args:
        script: path of the script; it reads ``job`` as a line of JSON, and then the file.
        job: what is wanted.
        data: the file.
        timeout_s: after which the process is killed.
        calling: registers how to kill it.

    Raises:
        DecoderEnded: the process ended too early.
        OSError: no process can be started.
    """
    is_late = threading.Event()
    with subprocess.Popen(  # noqa: S603 - a file of an installed package
        [sys.executable, "-P", str(Path(script))],
        env={name: os.environ[name] for name in _NEEDED if name in os.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # decoders print what is in files
        start_new_session=True,  # Ctrl-C is for the parent
    ) as process:
        clock = threading.Timer(timeout_s, _end, (process, is_late))
        clock.daemon = True
        clock.start()
        try:
            with calling(process.kill) if calling else nullcontext():
                assert process.stdin is not None  # noqa: S101 - it is a pipe
                assert process.stdout is not None  # noqa: S101 - it is a pipe
                _send(process.stdin, json.dumps(job).encode() + b"\n", data)
                yield Answer(process.stdout)
        except EOFError:
            raise DecoderEnded(is_late=is_late.is_set()) from None
        finally:
            clock.cancel()
            process.kill()
            clock.join()
            if process.stdin is not None:
                with suppress(OSError):  # what it did not read is sent again, in vain
                    process.stdin.close()


def _end(process: "subprocess.Popen[bytes]", is_late: threading.Event) -> None:
    is_late.set()
    process.kill()


def _send(stdin: IO[bytes], *pieces: bytes) -> None:
    """Send what the process reads; the pipe stays open until it is to end."""
    try:
        for piece in pieces:
            stdin.write(piece)
        stdin.flush()
    except OSError as error:  # it has ended
        raise EOFError from error
