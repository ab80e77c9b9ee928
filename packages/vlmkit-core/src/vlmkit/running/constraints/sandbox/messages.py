"""Messages between the server and its constraint worker: frames of the wire codec, through pipes.

The codec checks the types of the worker's answers, as of those of renderers: the worker's input
comes from clients.
"""

from dataclasses import dataclass

from vlmkit.errors import VlmkitError, WireError
from vlmkit.running.prompting.renderers.messages import ForeignError, Ready
from vlmkit.types.constraint import Constraint
from vlmkit.wire.codec import WIRE, Codec
from vlmkit.wire.frames import Frame


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A request to try a constraint.

    Attributes:
        number: the number of the trial.
        constraint: the encoded constraint, which only the process of the trial decodes.
        max_cpu_s: CPU time after which the trial is killed.
    """

    number: int
    constraint: bytes
    max_cpu_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to kill a trial; harmless when it has ended."""

    number: int


@dataclass(frozen=True, slots=True)
class Passed:
    """A constraint was compiled and followed within the limits.

    Attributes:
        num_bytes: the memory that it took.
    """

    num_bytes: int


@dataclass(frozen=True, slots=True)
class Killed:
    """The process of a trial ended without an answer.

    Attributes:
        signal: the number of the signal that ended it; 0 for none.
    """

    signal: int


Result = Passed | Killed | ForeignError | VlmkitError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a trial.

    Attributes:
        number: the number of the trial.
        result: its result.
        cpu_s: the CPU time that it took.
    """

    number: int
    result: Passed | Killed | ForeignError | VlmkitError
    cpu_s: float


CODEC = Codec(
    {
        "constraint.check": CheckRequest,
        "constraint.stop": Stop,
        "constraint.passed": Passed,
        "constraint.killed": Killed,
        "constraint.result": CheckResult,
        "constraint.ready": Ready,
        "constraint.foreign_error": ForeignError,
    }
)


def check_request_of(number: int, constraint: Constraint, max_cpu_s: float) -> CheckRequest:
    """Return the request to try a constraint."""
    return CheckRequest(number, bytes(WIRE.encode(constraint).head), max_cpu_s)


def constraint_of(request: CheckRequest) -> Constraint:
    """Return the constraint of a request.

    Raises:
        WireError: the request holds something else.
    """
    constraint = WIRE.decode(Frame(request.constraint))
    if not isinstance(constraint, Constraint):
        raise WireError("a message to a constraint worker holds no constraint")
    return constraint


def result_of(content: bytes) -> Result:
    """Return the result that the process of a trial wrote.

    Raises:
        WireError: it is malformed.
    """
    result = CODEC.decode(Frame(content))
    if not isinstance(result, Result):
        raise WireError("a trial of a constraint wrote no result")
    return result
