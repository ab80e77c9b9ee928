"""A plugin in a file: a constraint compiler that hangs, spins or fills memory as the pattern says.

It simulates a library that meets a hostile constraint.
"""

import time

import numpy as np

import vlmkit
from vlmkit.errors import ConstraintError
from vlmkit.types.constraint import Regex

VLMKIT_API = (1, 0)


class AnyByte:
    may_end = True

    def fill(self, mask):
        mask[:8] = np.int32(-1)

    def accept(self, token_id):
        return True

    def roll_back(self, num_tokens):
        pass

    def forced(self):
        return ()


class SlowByte(AnyByte):
    def fill(self, mask):
        spin(0.3)
        super().fill(mask)


def spin(seconds):
    began_s = time.process_time()
    while time.process_time() - began_s < seconds:
        pass


class HostileCompiler:
    def order_of(self, constraint):
        if isinstance(constraint, Regex):
            return constraint.pattern.partition(" ")[0]
        return "spin" if "spin" in repr(constraint) else "any"

    def compile(self, constraint):
        order = self.order_of(constraint)
        if order == "spin":
            spin(1000)
        if order == "wait":
            time.sleep(1000)
        if order == "eat":
            held = [bytearray(2**20) for _ in range(2**14)]
            raise ConstraintError(f"{len(held)}")
        if order == "break":
            raise ValueError(constraint.pattern)
        return SlowByte if order == "slow" else AnyByte


@vlmkit.hookimpl
def vlmkit_register_constraints(registry):
    registry.add("hostile", lambda context: HostileCompiler(), description="does as it is told")
