"""Messages between the server and its constraint worker, in frames through pipes.

The worker's answers are of a closed list of types, as those of renderers: its input comes from
clients.
"""

from typing import Any

import msgspec

from vlmkit.running.prompting.renderers.messages import Frame, Ready, Refusal
from vlmkit.running.prompting.renderers.serializer import Unpacker, to_plain
from vlmkit.types.constraint import Constraint


class CheckRequest(msgspec.Struct, tag="try"):
    """A request to try a constraint.

    Attributes:
        number: the number of the trial.
        constraint: the constraint, as plain data.
        max_cpu_s: CPU time after which the trial is killed.
    """

    number: int
    constraint: Any
    max_cpu_s: float


class Stop(msgspec.Struct, tag="stop"):
    """A request to kill a trial; harmless when it has ended."""

    number: int


class Passed(msgspec.Struct, tag="passed"):
    """A constraint was compiled and followed within the limits.

    Attributes:
        num_bytes: the memory that it took.
    """

    num_bytes: int


class Killed(msgspec.Struct, tag="killed"):
    """The process of a trial ended without an answer.

    Attributes:
        signal: the number of the signal that ended it; 0 for none.
    """

    signal: int


Result = Passed | Refusal | Killed


class CheckResult(msgspec.Struct, tag="tried"):
    """The result of a trial.

    Attributes:
        number: the number of the trial.
        result: its result.
        cpu_s: the CPU time that it took.
    """

    number: int
    result: Result
    cpu_s: float


_REQUESTS: msgspec.msgpack.Decoder[CheckRequest | Stop] = msgspec.msgpack.Decoder(
    CheckRequest | Stop
)
_ANSWERS: msgspec.msgpack.Decoder[CheckResult | Ready | Refusal] = msgspec.msgpack.Decoder(
    CheckResult | Ready | Refusal
)
_RESULTS: msgspec.msgpack.Decoder[Passed | Refusal] = msgspec.msgpack.Decoder(Passed | Refusal)


def frame_of(message: msgspec.Struct) -> Frame:
    """Return the frame of a message."""
    return Frame(msgspec.msgpack.encode(message))


def check_request_of(number: int, constraint: Constraint, max_cpu_s: float) -> CheckRequest:
    """Return the request to try a constraint."""
    return CheckRequest(number, to_plain(constraint, []), max_cpu_s)


def constraint_of(request: CheckRequest) -> Constraint:
    """Return the constraint of a request.

    Raises:
        ValueError: the request holds something else.
    """
    constraint = Unpacker().value(request.constraint)
    if not isinstance(constraint, Constraint):
        raise ValueError("a message from another process is malformed")  # noqa: TRY004
    return constraint


def request_of(frame: Frame) -> CheckRequest | Stop:
    """Return the server's request."""
    return _REQUESTS.decode(frame.head)


def answer_of(frame: Frame) -> CheckResult | Ready | Refusal:
    """Return the worker's answer.

    Raises:
        ValueError: it is malformed.
    """
    return _ANSWERS.decode(frame.head)


def result_of(content: bytes) -> Passed | Refusal:
    """Return the result that the process of a trial wrote.

    Raises:
        ValueError: it is malformed.
    """
    return _RESULTS.decode(content)
