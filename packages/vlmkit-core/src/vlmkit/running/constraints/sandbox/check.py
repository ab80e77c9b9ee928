"""One trial of a constraint: checks its limits, compiles it, and follows a random answer.

It runs in a process of its own, which is killed when it exceeds a limit. A constraint that passes
is compiled again by the server; the process returns no compiled constraint.
"""

import random
import sys
import time

import numpy as np

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import ConstraintCompiler, Matcher
from vlmkit.running.constraints.limits import check_limits
from vlmkit.running.constraints.sandbox.messages import Passed
from vlmkit.running.sampling.token_sets import num_words
from vlmkit.types.constraint import Constraint

MAX_CPU_S = 0.9  # of one trial, then its process is killed; the server compiles once more
MAX_ALL_CPU_S = 1.8  # of all trials of one constraint, except the last one, which is likely to pass
MIN_CPU_S = 0.1  # of that last one
MAX_BYTES = 192 * 2**20
MAX_STEP_S = 0.15  # CPU time of one bitmask, for which other requests may wait
NUM_TOKENS = 64
WALK_S = 0.3  # CPU time after which no further token is followed


def checked(compiler: ConstraintCompiler, constraint: Constraint, vocab_size: int) -> Passed:
    """Compile a constraint, and follow an answer of random tokens.

    Raises:
        ConstraintError: it is over a limit, cannot be compiled, or is too slow for one token.
    """
    check_limits(constraint)
    began_bytes = _resident_bytes()
    matcher = compiler.compile(constraint)()
    num_bytes = _resident_bytes() - began_bytes
    try:
        _walk(matcher, vocab_size)
    except _TooSlow:
        raise ConstraintError(
            "the constraint is too complex: computing which tokens may follow one takes more than "
            f"{MAX_STEP_S} s"
        ) from None
    except ConstraintError:
        # This random answer cannot go on within the constraint; others may.
        pass
    num_bytes = max(num_bytes, _resident_bytes() - began_bytes, 0)
    return Passed(num_bytes)


class _TooSlow(Exception):  # noqa: N818
    """A bitmask took too long."""


def _walk(matcher: Matcher, vocab_size: int) -> None:
    chance, began_s = random.Random(0), time.process_time()
    for _ in range(NUM_TOKENS):
        step_s = time.process_time()
        matcher.forced()
        mask = np.zeros(num_words(vocab_size), np.int32)
        matcher.fill(mask)
        bits = np.unpackbits(mask.astype("<i4").view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        if not len(allowed) or not matcher.accept(int(chance.choice(allowed))):
            return
        now_s = time.process_time()
        if now_s - step_s > MAX_STEP_S:
            raise _TooSlow
        if now_s - began_s > WALK_S:
            return


def _resident_bytes() -> int:
    """Return the resident memory of this process; 0 where it is unknown."""
    num_bytes = 0
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            num_bytes = int(file.read().split()[1]) * resource.getpagesize()
    return num_bytes
