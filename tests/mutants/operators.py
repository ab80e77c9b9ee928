"""Makes mutants of a module: copies of its source that differ in one place.

The operators are those of subtle mistakes: bounds that are off by one, turned comparisons, updates
and resets that are missing, swapped arguments, values that are not copied. Annotations, docstrings,
decorators, and the texts of errors and log lines stay as they are, since no protocol states them.
"""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
COPIES = {"list", "dict", "set", "tuple", "frozenset", "sorted", "copy", "deepcopy"}
OF_DECLARATIONS = {"annotation", "returns", "decorator_list", "bases", "keywords", "args"}
TEXTS = {"debug", "info", "warning", "error", "exception"}  # of log lines


class Mutant(NamedTuple):
    """A changed copy of a module.

    Attributes:
        line: of the change, counted from 1.
        function: the qualified name of the function or class with the change; empty at the top.
        before: the changed statement or expression.
        after: what is in its place.
        statement: the first line of the innermost statement with the change, and which of equal
            changes in such statements of the function it is.
        write: returns the source of the whole copy, which takes long for a large module.
    """

    line: int
    function: str
    before: str
    after: str
    statement: tuple[str, int]
    write: Callable[[], str]

    @property
    def source(self) -> str:
        """The source of the whole copy."""
        return self.write()

    @property
    def key(self) -> str:
        """Names the mutant as long as its statement does not change; 12 characters."""
        named = f"{self.function}\0{self.before}\0{self.after}\0{self.statement}"
        return hashlib.sha256(named.encode()).hexdigest()[:12]


Change = Callable[[ast.AST], ast.AST]


class _Place(NamedTuple):
    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    function: str
    statement: str

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def mutants_of(source: str) -> Iterator[Mutant]:
    """Yield all mutants of a module's source."""
    equals: Counter[tuple[str, ...]] = Counter()
    for number, place in enumerate(_places(ast.parse(source))):
        before = ast.unparse(place.node)
        for change in _changes(place.node):
            line = getattr(place.node, "lineno", 0)
            after = ast.unparse(_located(change(copy.deepcopy(place.node)), place.node))
            change_of = (place.function, place.statement, before, after)
            statement = place.statement, equals[change_of]
            equals[change_of] += 1
            write = partial(_written, source, number, change)
            yield Mutant(line, place.function, before, after, statement, write)


def _written(source: str, number: int, change: Change) -> str:
    """Return a module's source with a change of the place of this number."""
    tree = ast.parse(source)
    place = next(each for n, each in enumerate(_places(tree)) if n == number)
    place.put(_located(change(place.node), place.node))
    return ast.unparse(tree)


def _located(node: ast.AST, old: ast.AST) -> ast.AST:
    """Return a new node with the line of the one in whose place it is."""
    return ast.fix_missing_locations(ast.copy_location(node, old))


def _places(tree: ast.AST, function: str = "", statement: str = "") -> Iterator[_Place]:
    """Yield the nodes that may change, each with its place, parents first."""
    for field, value in ast.iter_fields(tree):
        if field in OF_DECLARATIONS and not isinstance(tree, ast.Call):
            continue
        values = value if isinstance(value, list) else [value]
        for index, node in enumerate(values):
            if not isinstance(node, ast.AST) or _is_text(node):
                continue
            name = function
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{function}.{node.name}".lstrip(".")
            own = ast.unparse(node).partition("\n")[0] if isinstance(node, ast.stmt) else statement
            at = index if isinstance(value, list) else None
            yield _Place(node, tree, field, at, name, own)
            yield from _places(node, name, own)


def _is_text(node: ast.AST) -> bool:
    """Whether a node is for readers, or for type checkers."""
    if isinstance(node, ast.Expr):
        call = node.value
        if isinstance(call, ast.Constant):
            return True
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            return call.func.attr in TEXTS
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.FunctionDef):
        return node.name == "__repr__"
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.Assert | ast.JoinedStr)


def _changes(node: ast.AST) -> Iterator[Change]:  # noqa: C901 - one case for each kind of node
    """Yield the changes of one node."""
    match node:
        case ast.Constant(value=bool(flag)):
            yield lambda node: ast.Constant(not flag)
        case ast.Constant(value=int(number) | float(number)):
            yield lambda node: ast.Constant(number + 1)
            yield lambda node: ast.Constant(number - 1)
        case ast.Compare(ops=ops):
            for place, old in enumerate(ops):
                for new in COMPARISONS[type(old)]:
                    yield lambda node, place=place, new=new: _with(node, "ops", place, new())
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC and not _is_str(node.left):
            yield lambda node: _set(node, "op", ARITHMETIC[type(operator)]())
        case ast.AugAssign(op=operator):
            yield lambda node: ast.Pass()
            if type(operator) in ARITHMETIC:
                yield lambda node: _set(node, "op", ARITHMETIC[type(operator)]())
        case ast.BoolOp(op=operator):
            other = ast.Or if isinstance(operator, ast.And) else ast.And
            yield lambda node: _set(node, "op", other())
            for place in range(len(node.values)):
                yield lambda node, place=place: _without(node, place)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield lambda node: node.operand  # type: ignore[attr-defined]
        case ast.If() | ast.IfExp() if not isinstance(node.test, ast.Compare | ast.BoolOp):
            yield lambda node: _set(node, "test", _negated(node))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete():
            yield lambda node: ast.Pass()
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield lambda node: ast.Pass()
        case ast.Continue():
            yield lambda node: ast.Break()
        case ast.Break():
            yield lambda node: ast.Continue()
        case ast.Slice():
            for bound in ("lower", "upper"):
                if getattr(node, bound) is not None:
                    yield lambda node, bound=bound: _set(node, bound, None)
        case ast.Call():
            yield from _changes_of_call(node)


def _changes_of_call(call: ast.Call) -> Iterator[Change]:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else name
    if isinstance(call.func, ast.Name) and name in FUNCTIONS:
        yield lambda node: _set(node, "func", ast.Name(FUNCTIONS[name], ast.Load()))
    if name in COPIES and len(call.args) == 1 and not call.keywords:
        yield lambda node: node.args[0]  # type: ignore[attr-defined]
    if name == "copy" and not call.args and isinstance(call.func, ast.Attribute):
        yield lambda node: node.func.value  # type: ignore[attr-defined]
    if name not in FUNCTIONS and not any(isinstance(each, ast.Starred) for each in call.args):
        for place in range(len(call.args) - 1):
            if ast.dump(call.args[place]) != ast.dump(call.args[place + 1]):
                yield lambda node, place=place: _swapped(node, place)


def _set(node: Any, field: str, value: Any) -> ast.AST:
    setattr(node, field, value)
    return node


def _with(node: Any, field: str, place: int, value: Any) -> ast.AST:
    getattr(node, field)[place] = value
    return node


def _without(node: Any, place: int) -> ast.AST:
    del node.values[place]
    return node if len(node.values) > 1 else node.values[0]


def _negated(node: Any) -> ast.AST:
    test = node.test
    is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return test.operand if is_not else ast.UnaryOp(ast.Not(), test)


def _swapped(node: Any, place: int) -> ast.AST:
    args = node.args
    args[place], args[place + 1] = args[place + 1], args[place]
    return node


def _is_str(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
