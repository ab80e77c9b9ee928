"""Compiles a constraint without the parts of its schemas that cannot be enforced and need not be.

What the compiler declares is left out first. What it refuses nevertheless is found by trying
schemas in halves, and left out by the keyword that its error names, or else as a whole. The number
of trials is bounded, and so is the CPU time that they take together.
"""

import json
from collections.abc import Callable, Sequence as Seq
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import MakeMatcher, SchemaSupport
from vlmkit.running.constraints.schema_reduction import NARROWING, LeftOut, reduced
from vlmkit.types.constraint import Constraint, JsonSchema, Lark

MAX_TRIALS = 24  # of parts of one constraint
MAX_ROUNDS = 4  # for one schema
MAX_SHOWN_CHARS = 256  # of a path
FREE = '{"type":"object"}'  # the arguments of a tool
ANYTHING = "true"  # one argument

Compile = Callable[[Constraint], MakeMatcher]
TryPart = Callable[[Constraint], None]


class Compiled(NamedTuple):
    """A compiled constraint.

    Attributes:
        make: makes its matchers.
        unconstrained: what answers are not held to: a tool's name, and a path in its schema.
    """

    make: MakeMatcher
    unconstrained: tuple[str, ...] = ()


def compiled(
    constraint: Constraint, support: SchemaSupport, compile_whole: Compile, try_part: TryPart
) -> Compiled:
    """Compile a constraint, without what cannot be enforced of schemas that are not strict.

    Args:
        constraint: what is compiled.
        support: what the compiler declares.
        compile_whole: compiles a constraint.
        try_part: raises the error that compiling some schemas of it would raise, if any.

    Raises:
        ConstraintError: what cannot be left out cannot be compiled.
    """
    parts = [_Part(schema, support) for schema in _schemas(constraint)]
    try:
        return _whole(constraint, parts, compile_whole)
    except ConstraintError as error:
        if not parts:
            raise
        first = error
    trials = _Trials(try_part)
    if isinstance(constraint, JsonSchema):
        trials.settle_one(parts[0], first)
    else:
        trials.settle(parts)
    try:
        return _whole(constraint, parts, compile_whole)
    except ConstraintError:
        free = [part for part in parts if part.may_be_free]
        if not free:
            raise
        for part in free:
            part.free("is too complex beside others")
        return _whole(constraint, parts, compile_whole)


def _schemas(constraint: Constraint) -> list[JsonSchema]:
    if isinstance(constraint, JsonSchema):
        return [constraint]
    return [schema for _, schema in constraint.schemas] if isinstance(constraint, Lark) else []


def _whole(constraint: Constraint, parts: Seq["_Part"], compile_whole: Compile) -> Compiled:
    told = [name for part in parts for name in part.unconstrained()]
    if isinstance(constraint, JsonSchema):
        return Compiled(compile_whole(parts[0].schema), tuple(told))
    if isinstance(constraint, Lark):
        names = [name for name, _ in constraint.schemas]
        schemas = tuple((name, part.schema) for name, part in zip(names, parts, strict=True))
        told = [*constraint.unconstrained, *told]
        constraint = replace(constraint, schemas=schemas, unconstrained=())
    return Compiled(compile_whole(constraint), tuple(dict.fromkeys(told)))


class _Part:
    """One schema of a constraint.

    Attributes:
        given: what was asked for.
        schema: what is compiled.
    """

    def __init__(self, given: JsonSchema, support: SchemaSupport) -> None:
        self.given = given
        self.schema = given
        self._support = support
        self._left_out: list[LeftOut] = []
        self._faulty: set[str] = set()
        self._is_free = False
        self._reduce()

    @property
    def may_be_free(self) -> bool:
        """Whether it may be left out as a whole, and is not yet."""
        return bool(self.given.tool) and not self.given.is_strict and not self._is_free

    def free(self, reason: str) -> None:
        """Leave it out as a whole."""
        self._is_free = True
        self.schema = JsonSchema(ANYTHING if self.given.place else FREE)
        self._left_out = [LeftOut("", "", reason)]

    def leave_out(self, error: ConstraintError) -> bool:
        """Leave out the keyword that an error names; tell whether there is one to leave out."""
        if self.given.is_strict or not error.keyword or error.keyword in self._faulty:
            return False
        num_before = len(self._left_out)
        self._faulty.add(error.keyword)
        self._reduce()
        return len(self._left_out) > num_before

    def located(self, error: ConstraintError) -> ConstraintError:
        """Return an error about this schema that says where in it the reason is."""
        path = ""
        if error.keyword:
            found = reduced(json.loads(self.given.text), SchemaSupport(), {error.keyword}).left_out
            path = next((each.path for each in found if each.keyword == error.keyword), "")
        made = ConstraintError(
            f"{error}{self._where(path)}", hint=error.hint, keyword=error.keyword
        )
        made.param = "tools" if self.given.tool else error.param
        return made

    def unconstrained(self) -> list[str]:
        """Return what is left out, as answers tell it."""
        return [
            f"{_quoted(self.given.tool)}#{_quoted(self.given.place + each.path)}"
            for each in self._left_out
        ]

    def _reduce(self) -> None:
        given = json.loads(self.given.text)
        try:
            schema, self._left_out = reduced(given, self._support, self._faulty)
            is_same = json.dumps(schema) == json.dumps(given)
            self.schema = JsonSchema(self.given.text) if is_same else JsonSchema.of(schema)
        except ConstraintError as error:  # it is nested too deeply, or too long
            if not self.may_be_free:
                raise self.located(error) from error
            self.free("is too large")
        for each in self._left_out:
            if self.given.is_strict or not (self.given.tool or each.keyword in NARROWING):
                raise self._refusal(each)

    def _refusal(self, left_out: LeftOut) -> ConstraintError:
        whose = f"the schema of tool {self.given.tool!r}" if self.given.tool else "it"
        error = ConstraintError(
            f"the constraint cannot be compiled: at #{_shown(self.given.place + left_out.path)}, "
            f"{whose} {left_out.reason}",
            hint="leave it out, or do not ask for a strict schema" if self.given.is_strict else "",
            keyword=left_out.keyword,
        )
        error.param = "tools" if self.given.tool else error.param
        return error

    def _where(self, path: str) -> str:
        """Return where in which schema, as the end of a sentence; empty where nobody knows."""
        tool = f", in the schema of tool {self.given.tool!r}" if self.given.tool else ""
        path = self.given.place + path
        return f"{tool}, at #{_shown(path)}" if path else tool


def _quoted(text: str) -> str:
    """Return a text in the characters that a header may hold."""
    return quote(text, safe="/$~", errors="replace")


def _shown(path: str) -> str:
    """Return a path as errors show it."""
    path = path.encode(errors="replace").decode()
    return path if len(path) <= MAX_SHOWN_CHARS else f"{path[:MAX_SHOWN_CHARS]}..."


class _Trials:
    """Finds out which schemas cannot be compiled."""

    def __init__(self, try_part: TryPart) -> None:
        self._try_part = try_part
        self._num_left = MAX_TRIALS

    def settle(self, parts: Seq[_Part]) -> None:
        """Leave out of some schemas what cannot be compiled."""
        if self._num_left <= 0:
            for part in parts:
                if part.may_be_free:
                    part.free("was not tried")
            return
        error = self._error(parts)
        if error is None:
            return
        if len(parts) == 1:
            self.settle_one(parts[0], error)
        else:
            middle = len(parts) // 2
            self.settle(parts[:middle])
            self.settle(parts[middle:])

    def settle_one(self, part: _Part, error: ConstraintError) -> None:
        """Leave out of a schema what an error names, and so on; or else the whole schema.

        Raises:
            ConstraintError: it may not be left out.
        """
        for _ in range(MAX_ROUNDS):
            if not part.leave_out(error):
                break
            found = self._error([part])
            if found is None:
                return
            error = found
        if not part.may_be_free:
            raise part.located(error)
        part.free("cannot be compiled")

    def _error(self, parts: Seq[_Part]) -> ConstraintError | None:
        """Return why some schemas cannot be compiled together, None if they can."""
        self._num_left -= 1
        schemas = tuple((f"part_{n}", part.schema) for n, part in enumerate(parts))
        ways = " | ".join(f'"{n}:" {name}' for n, (name, _) in enumerate(schemas))
        only = len(parts) == 1
        try:
            self._try_part(parts[0].schema if only else Lark(f"start: {ways}", schemas))
        except ConstraintError as error:
            return error
        return None
