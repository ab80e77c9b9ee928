"""Answers a file of requests without a server: one line of output for each line of input, in order.

The output file is the only state. A complete line in it is an answer; what follows the last line
feed is not. So a run that was killed goes on after its last complete line. It builds no server: see
:mod:`vlmkit_server.offline`.
"""

import asyncio
import base64
import hashlib
import mimetypes
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, get_args

import msgspec

from vlmkit.errors import RequestError
from vlmkit.running.pipeline.ordered_tasks import OrderedTasks
from vlmkit_server.apis.batches.in_process_client import Answer, InProcessClient
from vlmkit_server.apis.batches.input_lines import BOM, Line, custom_id_of, line_of
from vlmkit_server.apis.batches.line_requests import retry_of
from vlmkit_server.apis.batches.output_lines import LINE_PREFIX, answered, new_id, unanswered
from vlmkit_server.apis.batches.wire import MESSAGES, Endpoint
from vlmkit_server.http.caller import ANONYMOUS
from vlmkit_server.http.errors import CLIENT_GONE

T = TypeVar("T")

ENDPOINTS = (*get_args(Endpoint), MESSAGES)
MAX_AHEAD_BYTES = 2**28  # of answers in memory, while an earlier line has none
MAX_IMAGE_BYTES = 2**26
NUM_READ = 64  # lines that are read at once
LARGE_BYTES = 2**16  # parsing or encoding more takes milliseconds
_CHOOSE = "choose another output file, or remove this one"
SYNC_S = 1.0  # after which answers are on the disk


class Problem(Exception):  # noqa: N818 - becomes the error of a line, and is not raised further
    """A line that cannot be sent.

    Args:
        code: the code of the error.
        message: what is wrong.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InputLine(NamedTuple):
    """A line of the input file that is not blank.

    Attributes:
        number: its number among all lines, counted from 1.
        content: the line; its beginning if it is too long.
        is_too_long: whether it is over the limit.
        custom_id: its id; one made of its number if it has none that can be read.
    """

    number: int
    content: bytes
    is_too_long: bool
    custom_id: str


def input_lines(path: Path, max_bytes: int) -> Iterator[InputLine]:
    """Yield the lines of a file that are not blank, with one at a time in memory."""
    with path.open("rb") as file:
        file.seek(len(BOM) if file.read(len(BOM)) == BOM else 0)
        number = 0
        while content := file.readline(max_bytes + 2):
            number += 1
            is_too_long = len(content.rstrip(b"\r\n")) > max_bytes
            while not content.endswith(b"\n") and is_too_long:
                if (rest := file.readline(max_bytes)).endswith(b"\n") or not rest:
                    break
            if not content.isspace():
                custom_id = _custom_id(content) or f"line-{number}"
                yield InputLine(number, content, is_too_long, custom_id)


def _custom_id(content: bytes) -> str | None:
    """Return the id in a line; None if it has none that can be read."""
    try:
        return custom_id_of(content)
    except (ValueError, RecursionError):
        return None


class OutputFile:
    """The output file, open for appending.

    Args:
        path: the file; it is created if it does not exist.

    Raises:
        RequestError: it cannot be opened, or another run writes to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: BinaryIO = path.open("ab", buffering=0)
        except OSError as error:
            raise RequestError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise RequestError(f"{path} is no regular file")
            _lock(self._file, path)
        except BaseException:
            self._file.close()
            raise
        self._synced_s = time.monotonic()

    def close(self) -> None:
        """Close the file, with everything on the disk.

        Raises:
            RequestError: it cannot be written.
        """
        with self._file:
            self._sync()

    def complete_lines(self) -> Iterator[bytes]:
        """Yield the complete lines, and remove the part of a line that a killed run has left.

        Raises:
            RequestError: what follows the last line is no part of an answer.
        """
        end = 0
        with self._path.open("rb") as file:
            while (content := file.readline()).endswith(b"\n"):
                end += len(content)
                yield content
        if content[: len(LINE_PREFIX)] != LINE_PREFIX[: len(content)]:
            raise RequestError(f"the last line of {self._path} is no answer", hint=_CHOOSE)
        self._file.truncate(end)

    def append(self, lines: list[bytes]) -> None:
        """Append lines; they survive the end of the process, and after a second one of the system.

        Raises:
            RequestError: they cannot be written; the file may end with a part of a line.
        """
        left = memoryview(b"".join(lines))
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._failure(error) from error
        if time.monotonic() - self._synced_s >= SYNC_S:
            self._sync()

    def _sync(self) -> None:
        """Put everything on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failure(error) from error
        self._synced_s = time.monotonic()

    def _failure(self, error: OSError) -> RequestError:
        return RequestError(
            f"{self._path} cannot be written: {error.strerror}",
            hint="the same command goes on where this one stops",
        )


def _lock(file: BinaryIO, path: Path) -> None:
    """Lock a file until it is closed, where the system has such locks.

    Raises:
        RequestError: another process has locked it.
    """
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RequestError(f"another run writes to {path}") from None


class BatchFile:
    """Answers the lines of a file.

    Args:
        client: sends the requests.
        output: the output file.
        images: the folder of images that lines name by a relative path.
        max_line_bytes: the longest line.
        num_concurrent: how many lines are answered at once.

    Attributes:
        num_before: the lines that were answered before this run.
        num_answered: the lines that this run has answered, failed ones included.
        num_failed: of them those without a successful answer, by the code of the error.
    """

    def __init__(
        self,
        client: InProcessClient,
        output: OutputFile,
        images: Path,
        max_line_bytes: int,
        num_concurrent: int,
    ) -> None:
        self._client = client
        self._output = output
        self._images = images.resolve()
        self._max_line_bytes = max_line_bytes
        self._gone = asyncio.Event()
        self._tasks: OrderedTasks[bytes] = OrderedTasks(num_concurrent, MAX_AHEAD_BYTES, len)
        self._paused_until_s = 0.0
        self.num_before = self.num_answered = 0
        self.num_failed: dict[str, int] = {}

    def stop(self) -> None:
        """Start no further line, and give up those that are being answered."""
        self._gone.set()
        self._tasks.notify()

    async def run(self, path: Path) -> None:
        """Answer the lines of a file that have no answer in the output file.

        Raises:
            RequestError: a file cannot be read or written, or the output is that of another input.
        """
        try:
            lines = self._unanswered(path)
            while not self._gone.is_set():
                if not (found := await asyncio.to_thread(list, islice(lines, NUM_READ))):
                    break
                for each in found:
                    self._tasks.start(self._answer(*each))
                    await self._write_until(lambda: self._tasks.has_room)
            await self._write_until(lambda: not self._tasks)
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error
        finally:
            self._gone.set()
            await self._tasks.ended()

    def _unanswered(self, path: Path) -> Iterator[tuple[InputLine, bool]]:
        """Yield the lines without an answer, and whether an earlier line has the same id.

        Raises:
            RequestError: the output file has answers to other lines.
        """
        lines = input_lines(path, self._max_line_bytes)
        ids = set[bytes]()
        for answer in self._output.complete_lines():
            line = next(lines, None)
            custom_id = _custom_id(answer) if answer.startswith(LINE_PREFIX) else None
            if line is None or custom_id != line.custom_id:
                raise RequestError(
                    f"line {self.num_before + 1} of the output file is no answer to this input",
                    hint=_CHOOSE,
                )
            self.num_before += 1
            ids.add(_digest(line.custom_id))
        for line in lines:
            known = _digest(line.custom_id)
            yield line, known in ids
            ids.add(known)

    async def _write_until(self, condition: Callable[[], bool]) -> None:
        """Write answers until a condition holds, or the run is stopped."""
        tasks, gone = self._tasks, self._gone
        self._write()
        while not condition() and not gone.is_set():
            await tasks.wait_for(lambda: tasks.is_first_done or condition() or gone.is_set())
            self._write()

    def _write(self) -> None:
        """Write the answers up to the first line that has none yet."""
        found = []
        while self._tasks.is_first_done and (answer := self._tasks.first()):  # nothing: given up
            found.append(answer)
            self._tasks.take()
        if found:
            self._output.append(found)
            self.num_answered += len(found)

    async def _answer(self, line: InputLine, is_repeated: bool) -> bytes:
        """Return the answer to a line; nothing if it was given up."""
        try:
            if is_repeated:
                raise Problem("duplicate_custom_id", "custom_id is an earlier line's, too")
            parsed, body = await _in_thread(partial(self._parsed, line), _cost(line.content))
        except Problem as problem:
            self._count(problem.code)
            return unanswered(line.custom_id, problem.code, str(problem))
        if (answer := await self._sent(parsed.url, body)) is None:
            return b""
        if answer.status != HTTPStatus.OK:
            self._count(f"http_{answer.status}")
        encode = partial(answered, new_id(), parsed.custom_id, answer)
        return await _in_thread(encode, len(answer.body))

    async def _sent(self, url: str, body: bytes) -> Answer | None:
        """Send a request, and again where that makes sense; None if it was given up."""
        num_attempts = 0
        while True:
            if (pause_s := self._paused_until_s - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._gone.wait(), pause_s)
            answer = await self._client.post(url, body, ANONYMOUS, new_id(), self._gone)
            if (retry := retry_of(answer, num_attempts)) is None:
                return None if answer.status == CLIENT_GONE else answer
            if self._gone.is_set():
                return None
            if retry.counts:
                num_attempts += 1
            else:  # there is no room, for other lines either
                self._paused_until_s = time.monotonic() + retry.pause_s

    def _count(self, code: str) -> None:
        self.num_failed[code] = self.num_failed.get(code, 0) + 1

    def _parsed(self, line: InputLine) -> tuple[Line, bytes]:
        """Return a line, and its body with images in place of their paths.

        Raises:
            Problem: it cannot be sent.
        """
        if line.is_too_long:
            raise Problem("line_too_long", f"the line is over {self._max_line_bytes} bytes")
        try:
            parsed = line_of(line.content)
        except msgspec.ValidationError as error:
            raise Problem("invalid_line", str(error)) from None
        except (ValueError, RecursionError):
            raise Problem("invalid_json_line", "the line is not valid JSON") from None
        if parsed.url not in ENDPOINTS:
            raise Problem("invalid_url", "url is no endpoint of batches")
        body = bytes(parsed.body)
        if b'"image_url"' not in body:
            return parsed, body
        try:
            decoded = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            return parsed, body  # its route reports what is wrong
        _embed(decoded, self._images)
        return parsed, msgspec.json.encode(decoded)


def _embed(value: Any, folder: Path) -> None:
    """Replace paths of images by their content, in all lists and objects of a value.

    Raises:
        Problem: a path names no image that can be read.
    """
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, list):
            waiting += current
        elif isinstance(current, dict):
            waiting += [each for name, each in current.items() if name != "image_url"]
            url = current.get("image_url")
            if isinstance(url, dict) and isinstance(url.get("url"), str):
                url["url"] = _content(url["url"], folder)
            elif isinstance(url, str):
                current["image_url"] = _content(url, folder)


def _content(url: str, folder: Path) -> str:
    """Return the ``data:`` URL of an image file; an address as it is.

    Raises:
        Problem: the path names no file in the folder, or one that cannot be read.
    """
    if ":" in url.partition("/")[0]:
        return url
    path = (folder / url).resolve()
    if not path.is_relative_to(folder):
        raise Problem("image_outside_folder", "the path of an image leaves the folder of images")
    try:
        if path.stat().st_size > MAX_IMAGE_BYTES:
            raise Problem("image_too_large", f"an image is over {MAX_IMAGE_BYTES} bytes")
        content = path.read_bytes()
    except (OSError, ValueError):
        raise Problem("image_not_found", "an image cannot be read") from None
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _cost(content: bytes) -> int:
    """Return the bytes that a line takes to parse; one with images may name large files."""
    return len(content) + (LARGE_BYTES if b'"image_url"' in content else 0)


async def _in_thread(work: Callable[[], T], num_bytes: int) -> T:
    """Do some work, in a thread if it takes more than a moment."""
    return work() if num_bytes < LARGE_BYTES else await asyncio.to_thread(work)


def _digest(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode(errors="replace"), digest_size=16).digest()


def num_lines(path: Path, max_bytes: int) -> int:
    """Return the number of lines of a file that are not blank.

    Raises:
        RequestError: it cannot be read.
    """
    try:
        return sum(1 for _ in input_lines(path, max_bytes))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
