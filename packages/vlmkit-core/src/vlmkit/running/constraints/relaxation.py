"""Compiles a constraint, and relaxes its schemas where they are not strict and cannot be enforced.

Keywords that the compiler declares as unsupported are left out first. If it still refuses, a
bisection over the schemas finds the faulty ones. Of a faulty schema, the keyword that the error
names is left out, or else the whole schema. The number of trials is bounded, and so is their CPU
time.
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

MAX_TRIALS = 24  # for one constraint
MAX_ROUNDS = 4  # keywords left out of one schema
MAX_SHOWN_CHARS = 256  # of a path
ANY_OBJECT = '{"type":"object"}'  # the arguments of a tool
ANY_VALUE = "true"  # one argument
LEAVE_OUT = "leave it out: only a schema that is not strict may have it"

Compile = Callable[[Constraint], MakeMatcher]
TryPart = Callable[[Constraint], None]


class Compiled(NamedTuple):
    """A compiled constraint.

    Attributes:
        make: makes its matchers.
        unenforced: the parts of schemas that are not enforced: a tool's name and a path each.
    """

    make: MakeMatcher
    unenforced: tuple[str, ...] = ()


def compile_relaxed(
    constraint: Constraint, support: SchemaSupport, compile_whole: Compile, try_part: TryPart
) -> Compiled:
    """Compile a constraint, relaxing schemas that are not strict and cannot be enforced.

    Args:
        constraint: the constraint.
        support: the keywords that the compiler declares as supported.
        compile_whole: compiles a constraint.
        try_part: raises the error that compiling a part of the constraint raises, if any.

    Raises:
        ConstraintError: a part that must not be relaxed cannot be compiled.
    """
    parts = [_SchemaPart(schema, support) for schema in _schemas(constraint)]
    try:
        return _compile_all(constraint, parts, compile_whole)
    except ConstraintError as error:
        if not parts:
            raise
        first = error
    search = _SchemaSearch(try_part)
    if isinstance(constraint, JsonSchema):
        search.relax_one(parts[0], first)
    else:
        search.relax(parts)
    try:
        return _compile_all(constraint, parts, compile_whole)
    except ConstraintError:
        droppable = [part for part in parts if part.can_be_dropped]
        if not droppable:
            raise
        for part in droppable:
            part.drop("is too complex beside others")
        return _compile_all(constraint, parts, compile_whole)


def _schemas(constraint: Constraint) -> list[JsonSchema]:
    if isinstance(constraint, JsonSchema):
        return [constraint]
    return [schema for _, schema in constraint.schemas] if isinstance(constraint, Lark) else []


def _compile_all(
    constraint: Constraint, parts: Seq["_SchemaPart"], compile_whole: Compile
) -> Compiled:
    unenforced = [name for part in parts for name in part.unenforced()]
    if isinstance(constraint, JsonSchema):
        return Compiled(compile_whole(parts[0].schema), tuple(unenforced))
    if isinstance(constraint, Lark):
        names = [name for name, _ in constraint.schemas]
        schemas = tuple((name, part.schema) for name, part in zip(names, parts, strict=True))
        unenforced = [*constraint.unconstrained, *unenforced]
        constraint = replace(constraint, schemas=schemas, unconstrained=())
    return Compiled(compile_whole(constraint), tuple(dict.fromkeys(unenforced)))


class _SchemaPart:
    """One schema of a constraint.

    Attributes:
        given: the schema of the request.
        schema: the schema to compile.
    """

    def __init__(self, given: JsonSchema, support: SchemaSupport) -> None:
        self.given = given
        self.schema = given
        self._support = support
        self._left_out: list[LeftOut] = []
        self._faulty: set[str] = set()
        self._is_dropped = False
        self._reduce()

    @property
    def can_be_dropped(self) -> bool:
        """Whether the whole schema may be dropped, and is not yet."""
        return bool(self.given.tool) and not self.given.is_strict and not self._is_dropped

    def drop(self, reason: str) -> None:
        """Replace the whole schema by one that allows anything."""
        self._is_dropped = True
        self.schema = JsonSchema(ANY_VALUE if self.given.place else ANY_OBJECT)
        self._left_out = [LeftOut("", "", reason)]

    def leave_out(self, error: ConstraintError) -> bool:
        """Leave out the keyword that an error names; return whether that changed the schema."""
        if self.given.is_strict or not error.keyword or error.keyword in self._faulty:
            return False
        num_before = len(self._left_out)
        self._faulty.add(error.keyword)
        self._reduce()
        return len(self._left_out) > num_before

    def located(self, error: ConstraintError) -> ConstraintError:
        """Return an error that also says where in this schema the cause is."""
        path = ""
        if error.keyword:
            found = reduced(json.loads(self.given.text), SchemaSupport(), {error.keyword}).left_out
            path = next((each.path for each in found if each.keyword == error.keyword), "")
        made = ConstraintError(
            f"{error}{self._where(path)}", hint=error.hint, keyword=error.keyword
        )
        made.param = "tools" if self.given.tool else error.param
        return made

    def unenforced(self) -> list[str]:
        """Return the parts that are left out, as answers report them."""
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
            if not self.can_be_dropped:
                raise self.located(error) from error
            self.drop("is too large")
        for each in self._left_out:
            if self.given.is_strict or not (self.given.tool or each.keyword in NARROWING):
                raise self._refusal(each)

    def _refusal(self, left_out: LeftOut) -> ConstraintError:
        subject = f"the schema of tool {self.given.tool!r}" if self.given.tool else "it"
        error = ConstraintError(
            f"the constraint cannot be compiled: at #{_shown(self.given.place + left_out.path)}, "
            f"{subject} {left_out.reason}",
            hint=LEAVE_OUT if self.given.is_strict else "",
            keyword=left_out.keyword,
        )
        error.param = "tools" if self.given.tool else error.param
        return error

    def _where(self, path: str) -> str:
        """Return the location of an error, as the end of a sentence; empty if it is unknown."""
        tool = f", in the schema of tool {self.given.tool!r}" if self.given.tool else ""
        path = self.given.place + path
        return f"{tool}, at #{_shown(path)}" if path else tool


def _quoted(text: str) -> str:
    """Return a text quoted for an HTTP header."""
    return quote(text, safe="/$~", errors="replace")


def _shown(path: str) -> str:
    """Return a path shortened for an error message."""
    path = path.encode(errors="replace").decode()
    return path if len(path) <= MAX_SHOWN_CHARS else f"{path[:MAX_SHOWN_CHARS]}..."


class _SchemaSearch:
    """Finds the schemas that cannot be compiled, and relaxes them."""

    def __init__(self, try_part: TryPart) -> None:
        self._try_part = try_part
        self._num_left = MAX_TRIALS

    def relax(self, parts: Seq[_SchemaPart]) -> None:
        """Relax those of some schemas that cannot be compiled."""
        if self._num_left <= 0:
            for part in parts:
                if part.can_be_dropped:
                    part.drop("was not tried")
            return
        error = self._error(parts)
        if error is None:
            return
        if len(parts) == 1:
            self.relax_one(parts[0], error)
        else:
            middle = len(parts) // 2
            self.relax(parts[:middle])
            self.relax(parts[middle:])

    def relax_one(self, part: _SchemaPart, error: ConstraintError) -> None:
        """Leave out the keywords that errors name, one by one, or else drop the whole schema.

        Raises:
            ConstraintError: the schema must not be dropped.
        """
        for _ in range(MAX_ROUNDS):
            if not part.leave_out(error):
                break
            found = self._error([part])
            if found is None:
                return
            error = found
        if not part.can_be_dropped:
            raise part.located(error)
        part.drop("cannot be compiled")

    def _error(self, parts: Seq[_SchemaPart]) -> ConstraintError | None:
        """Return the error of compiling some schemas together, or None."""
        self._num_left -= 1
        schemas = tuple((f"part_{n}", part.schema) for n, part in enumerate(parts))
        ways = " | ".join(f'"{n}:" {name}' for n, (name, _) in enumerate(schemas))
        only = len(parts) == 1
        try:
            self._try_part(parts[0].schema if only else Lark(f"start: {ways}", schemas))
        except ConstraintError as error:
            return error
        return None
