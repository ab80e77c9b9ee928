"""Runs a separate process that decodes one file.

The process ends when it is done, after its time limit, when the waiting request is cancelled, and
with its parent. A decoder that crashes, hangs or exhausts memory affects one file, not the parent.
This is not a sandbox: the process lacks the parent's sockets and variables, but has the rights of
the same user.
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
"""Registers a callback that ends the process early, such as ``Cancellation.calling``."""

_NEEDED = (
    *("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("SYSTEMROOT", "TEMP", "TMP"),
)


class DecoderEnded(Exception):  # noqa: N818 - the reader of the answer decides what it means
    """The process ended before its answer was complete.

    Attributes:
        is_late: whether its time limit had passed.
    """

    def __init__(self, *, is_late: bool) -> None:
        super().__init__("late" if is_late else "early")
        self.is_late = is_late


class Answer:
    """The output of the process, which is untrusted."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, num_bytes: int) -> bytes:
        """Return the next ``num_bytes`` bytes.

        Raises:
            EOFError: the process ended before them.
        """
        content = self._stream.read(num_bytes)
        if len(content) < num_bytes:
            raise EOFError
        return content

    def line(self, max_bytes: int) -> dict[str, Any]:
        """Return the next line as a JSON object.

        Raises:
            EOFError: the process ended within the line, or the line is not a JSON object.
        """
        try:
            found = json.loads(self._stream.readline(max_bytes))
        except ValueError as error:
            raise EOFError from error
        if not isinstance(found, dict):
            raise EOFError  # noqa: TRY004 - any other value is an invalid answer
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
    """Run a script with a file and yield its answer; the process is gone when the context closes.

    Args:
        script: path of the script, which reads ``job`` as a line of JSON, and then the file.
        job: the parameters of the script.
        data: the content of the file.
        timeout_s: time after which the process is killed.
        calling: registers a callback that kills it early.

    Raises:
        DecoderEnded: the process ended too early.
        OSError: the process cannot be started.
    """
    is_late = threading.Event()
    with subprocess.Popen(  # noqa: S603 - a file of an installed package
        [sys.executable, "-P", str(Path(script))],
        env={name: os.environ[name] for name in _NEEDED if name in os.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # decoders print what is in files
        start_new_session=True,  # Ctrl-C must only reach the parent
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
                with suppress(OSError):  # closing flushes data that the process did not read
                    process.stdin.close()


def _end(process: "subprocess.Popen[bytes]", is_late: threading.Event) -> None:
    is_late.set()
    process.kill()


def _send(stdin: IO[bytes], *pieces: bytes) -> None:
    """Send data to the process; the open pipe also keeps it alive."""
    try:
        for piece in pieces:
            stdin.write(piece)
        stdin.flush()
    except OSError as error:  # the process has ended
        raise EOFError from error
