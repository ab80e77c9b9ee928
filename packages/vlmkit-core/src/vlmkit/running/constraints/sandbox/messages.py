"""What the server and its constraint worker send each other, in frames through pipes.

The worker answers by types of a closed list, as renderers do: what it reads was sent by clients.
"""

from typing import Any

import msgspec

from vlmkit.running.prompting.renderers.messages import Frame, Ready, Refusal
from vlmkit.running.prompting.renderers.serializer import Unpacker, to_plain
from vlmkit.types.constraint import Constraint


class CheckRequest(msgspec.Struct, tag="try"):
    """Try a constraint.

    Attributes:
        number: of the trial.
        constraint: as plain data.
        max_cpu_s: CPU time after which the trial is killed.
    """

    number: int
    constraint: Any
    max_cpu_s: float


class Stop(msgspec.Struct, tag="stop"):
    """Kill a trial; harmless when it has ended."""

    number: int


class Passed(msgspec.Struct, tag="passed"):
    """A constraint was compiled and followed within the limits.

    Attributes:
        num_bytes: memory that it took.
    """

    num_bytes: int


class Killed(msgspec.Struct, tag="killed"):
    """The process of a trial ended without an answer.

    Attributes:
        signal: that ended it, by its number; 0 for none.
    """

    signal: int


Result = Passed | Refusal | Killed


class CheckResult(msgspec.Struct, tag="tried"):
    """The result of a trial.

    Attributes:
        number: of the trial.
        result: what came of it.
        cpu_s: CPU time that it took.
    """

    number: int
    result: Result
    cpu_s: float


_ORDERS: msgspec.msgpack.Decoder[CheckRequest | Stop] = msgspec.msgpack.Decoder(CheckRequest | Stop)
_ANSWERS: msgspec.msgpack.Decoder[CheckResult | Ready | Refusal] = msgspec.msgpack.Decoder(
    CheckResult | Ready | Refusal
)
_RESULTS: msgspec.msgpack.Decoder[Passed | Refusal] = msgspec.msgpack.Decoder(Passed | Refusal)


def frame_of(message: msgspec.Struct) -> Frame:
    """Return a message as it travels."""
    return Frame(msgspec.msgpack.encode(message))


def try_of(number: int, constraint: Constraint, max_cpu_s: float) -> CheckRequest:
    """Return the order to try a constraint for so much CPU time."""
    return CheckRequest(number, to_plain(constraint, []), max_cpu_s)


def constraint_of(order: CheckRequest) -> Constraint:
    """Return the constraint of an order.

    Raises:
        ValueError: it is none.
    """
    constraint = Unpacker().value(order.constraint)
    if not isinstance(constraint, Constraint):
        raise ValueError("a message from another process makes no sense")  # noqa: TRY004
    return constraint


def order_of(frame: Frame) -> CheckRequest | Stop:
    """Return what the server asks for."""
    return _ORDERS.decode(frame.head)


def answer_of(frame: Frame) -> CheckResult | Ready | Refusal:
    """Return what the worker answers.

    Raises:
        ValueError: nothing that makes sense.
    """
    return _ANSWERS.decode(frame.head)


def result_of(content: bytes) -> Passed | Refusal:
    """Return what the process of a trial wrote.

    Raises:
        ValueError: nothing that makes sense.
    """
    return _RESULTS.decode(content)
