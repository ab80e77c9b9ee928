"""Measures of the sources: lines, classes, functions, small modules and repeated code."""

import ast
import io
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from structure.found import Areas, Found
from structure.imports import Imports
from structure.project import Module, Project

SMALL_LINES = 60
LONG_CLASS_LINES = 200
MANY_PARAMETERS = 8
WINDOW_LINES = 6
ALL = "all"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines(project: Project, imports: Imports) -> Areas:
    """Count the lines of each part, blank ones, comments and templates included."""
    return _sums(project, lambda module: len(module.text.splitlines()))


def code_lines(project: Project, imports: Imports) -> Areas:
    """Count the lines that hold code: none that are blank, of a docstring or of comments alone."""
    return _sums(project, lambda module: len(code_of(module)))


def distribution_lines(project: Project, imports: Imports) -> Areas:
    """Count the lines of each distribution."""
    return _sums(
        project, lambda module: len(module.text.splitlines()), lambda module: module.distribution
    )


def distribution_code_lines(project: Project, imports: Imports) -> Areas:
    """Count the lines of each distribution that hold code."""
    return _sums(project, lambda module: len(code_of(module)), lambda module: module.distribution)


def small_modules(project: Project, imports: Imports) -> Areas:
    """Count the modules under 60 lines that exactly one module imports.

    Packages' own ``__init__`` modules are no small modules, but they count as importers.
    """
    found: dict[str, list[str]] = {}
    for module in project.modules:
        items = found.setdefault(module.part, [])
        if module.is_package:
            continue
        num_lines = len(module.text.splitlines())
        importers = imports.importers(module.name) if num_lines < SMALL_LINES else ()
        if len(importers) == 1:
            items.append(f"{module.path} ({num_lines} lines) <- {next(iter(importers))}")
    return _with_all(found)


def repeated_runs(project: Project, imports: Imports) -> Areas:
    """Count the runs of six or more lines of code that stand in the sources twice.

    Lines are compared without indentation, comments, docstrings and imports. Lines without a letter
    count but do not make a window by themselves: three of its six lines must have one. What
    overlaps is one run. The first place of a text is the original; each further place is a run, in
    the part where it stands.
    """
    files = {module.path: _comparable(module) for module in project.modules}
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, numbered in files.items():
        for start in range(len(numbered) - WINDOW_LINES + 1):
            window = tuple(text for _, text in numbered[start : start + WINDOW_LINES])
            if sum(any(c.isalpha() for c in text) for text in window) >= WINDOW_LINES // 2:
                places[window].append((path, start))
    copies: dict[str, dict[int, tuple[str, int]]] = defaultdict(dict)
    for first, *others in places.values():
        for path, start in others:
            copies[path][start] = first
    found: dict[str, list[str]] = {}
    for module in project.modules:
        items = found.setdefault(module.part, [])
        items += _runs(module.path, copies[module.path], files)
    return _with_all(found)


def _runs(
    path: str,
    copies: dict[int, tuple[str, int]],
    files: dict[str, list[tuple[int, str]]],
) -> Iterator[str]:
    """Yield a line for each run of a file's windows that stand elsewhere before."""
    last = None
    for start in sorted(copies):
        if last is None or start > last + WINDOW_LINES - 1:
            origin, at = copies[start]
            yield f"{path}:{files[path][start][0]} = {origin}:{files[origin][at][0]}"
        last = start


def _comparable(module: Module) -> list[tuple[int, str]]:
    """Return the lines of code of a module that are compared, with their numbers."""
    skipped = {
        number
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return [(number, text) for number, text in code_of(module) if number not in skipped]


def long_classes(project: Project, imports: Imports) -> Areas:
    """Count the classes over 200 lines, from ``class`` to their last line."""
    found: dict[str, list[str]] = {}
    for module in project.modules:
        items = found.setdefault(module.part, [])
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and _length(node) > LONG_CLASS_LINES:
                num_methods = sum(isinstance(each, Function) for each in node.body)
                size = f"{_length(node)} lines, {num_methods} methods"
                items.append(f"{module.path}:{node.lineno} {node.name} ({size})")
    return _with_all(found)


def constructors(project: Project, imports: Imports) -> Areas:
    """Count the written ``__init__`` methods with more than eight parameters beside ``self``."""
    found: dict[str, list[str]] = {}
    for module in project.modules:
        items = found.setdefault(module.part, [])
        for node in ast.walk(module.tree):
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, Function) and method.name == "__init__":
                    num = _num_parameters(method) - 1
                    if num > MANY_PARAMETERS:
                        items.append(f"{module.path}:{method.lineno} {node.name} ({num})")
    return _with_all(found)


def function_median(project: Project, imports: Imports) -> Areas:
    """Take the median length of functions and methods, docstrings included, decorators not."""
    return {area: Found(statistics.median(sizes)) for area, sizes in _lengths(project).items()}


def function_p99(project: Project, imports: Imports) -> Areas:
    """Take the length that 99 in 100 functions do not exceed."""
    return {
        area: Found(sorted(sizes)[max(0, -(-99 * len(sizes) // 100) - 1)])
        for area, sizes in _lengths(project).items()
    }


def _lengths(project: Project) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for module in project.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, Function):
                found[module.part].append(_length(node))
                found[ALL].append(_length(node))
    return found


def _num_parameters(function: Function) -> int:
    arguments = function.args
    stars = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars])


def _length(node: ast.ClassDef | Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@cache
def code_of(module: Module) -> tuple[tuple[int, str], ...]:
    """Return the lines that hold code, with their numbers, without indentation and comments."""
    docs = _docstring_lines(module.tree)
    texts = module.text.splitlines()
    held: dict[int, int] = {}
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            for number in range(token.start[0], token.end[0] + 1):
                end = token.end[1] if number == token.end[0] else len(texts[number - 1])
                held[number] = max(end, held.get(number, 0))
    return tuple(
        (n, texts[n - 1][:end].strip()) for n, end in sorted(held.items()) if n not in docs
    )


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of texts that stand as statements of their own."""
    return {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _sums(
    project: Project,
    size: Callable[[Module], int],
    area: Callable[[Module], str] = lambda module: module.part,
) -> Areas:
    found: Counter[str] = Counter()
    for module in project.modules:
        found[area(module)] += size(module)
    found[ALL] = found.total()
    return {name: Found(number) for name, number in found.items()}


def _with_all(found: dict[str, list[str]]) -> Areas:
    """Return what was found in each part, and in all of them."""
    whole: Iterable[str] = (item for items in found.values() for item in items)
    return {part: Found.of(items) for part, items in found.items()} | {ALL: Found.of(list(whole))}
