"""Checks calls of filters, tests and methods before they run.

Each guard inspects the arguments of one call. A call that passes ends soon, and its result is small
enough for :class:`~vlmkit_hf.templates.sandbox.budget.Budget` to count.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

from vlmkit_hf.templates.sandbox.budget import Budget, TemplateTooCostly, check_chars, check_length

MAX_WIDTH = 2**12
"""The largest number for a width, a count or a precision."""
MAX_INDENT = 16
MAX_SLOW_CHARS = 2**12
"""The most characters for filters that search text in Python."""
MAX_STRIPPED_CHARS = 2**8
MAX_SEARCH = 2**26
"""The largest product of the lengths of a text and of what is searched from its end."""
MAX_SPLIT_CHARS = 2**20

SHALLOW_FILTERS = frozenset(
    {
        *("attr", "batch", "count", "d", "default", "first", "float", "int", "items", "last"),
        *("length", "list", "map", "random", "reject", "rejectattr", "reverse", "round"),
        *("select", "selectattr", "slice"),
    }
)
"""Filters that do not inspect the items of their arguments."""
SHALLOW_TESTS = frozenset(
    {
        *("boolean", "callable", "defined", "escaped", "false", "filter", "float", "integer"),
        *("iterable", "mapping", "none", "number", "sameas", "sequence", "string", "test", "true"),
        "undefined",
    }
)
_SLOW_FILTERS = frozenset({"pprint", "striptags", "urlize", "wordwrap", "xmlattr"})
_ITEMISED = frozenset(
    {
        *("batch", "list", "map", "reverse", "select", "slice", "sort", "title", "unique"),
        *("urlencode", "wordcount"),
    }
)
"""Filters that create an object for each character or word of a text."""
_WIDE_FILTERS = frozenset({"batch", "center", "indent", "round", "slice"})

STR_METHODS = frozenset(
    {
        *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format"),
        *("index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier"),
        *("islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust"),
        *("lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind"),
        *("rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
        *("startswith", "strip", "swapcase", "title", "upper", "zfill"),
    }
)
METHODS: Mapping[type, frozenset[str]] = {
    str: STR_METHODS,
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
}
"""The methods of built-in types that a template may call."""
SAME_RESULT = frozenset({"attr", "d", "default", "first", "get", "last", "random"})
"""Filters and methods that return an existing value."""

_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_LONG_NUMBER = re.compile(r"\d{5}")


def check_filter(budget: Budget, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call of a filter that would take too long, or whose result would be too large.

    Raises:
        TemplateTooCostly: it would.
    """
    value, *rest = args or (None,)
    rest += kwargs.values()
    budget.step(1 + len(rest) // 16)
    if name not in SHALLOW_FILTERS:
        size = sum(budget.measure(each) for each in (value, *rest))
        if name in _SLOW_FILTERS:
            budget.step(size)
            _at_most(size, MAX_SLOW_CHARS)
    if name in _WIDE_FILTERS:
        _check_widths(rest)
    if name in _ITEMISED and isinstance(value, str):
        _at_most(len(value), MAX_SPLIT_CHARS)
    if name == "trim":
        _check_stripped(rest)
    elif name == "indent":
        _check_indent(value, rest)
    elif name == "replace":
        _check_replace(str(value), list(map(str, _named(("old", "new"), args[1:], kwargs))))
    elif name == "format":
        check_percent(budget, str(value), (*args[1:], kwargs))


def check_method(budget: Budget, owner: Any, name: str, args: tuple[Any, ...]) -> None:
    """Refuse a method call on a built-in type that would be too slow, or its result too large.

    Args:
        budget: the budget of the rendering.
        owner: the object of the method.
        name: the name of the method.
        args: all arguments, keyword arguments included.

    Raises:
        SecurityError: templates must not call it.
        TemplateTooCostly: it would.
    """
    allowed = next((METHODS[kind] for kind in METHODS if isinstance(owner, kind)), frozenset())
    if name not in allowed:
        raise SecurityError(f"templates may not call {name!r} of {type(owner).__name__!r}")
    for each in args:
        budget.measure(each)
    if isinstance(owner, str):
        budget.measure(owner)
        if check := _STR_CHECKS.get(name):
            check(owner, args)
    elif name in ("count", "index"):
        budget.measure(owner)


def check_percent(budget: Budget, form: str, args: tuple[Any, ...]) -> None:
    """Refuse formatting with ``%`` whose result would be too large.

    Raises:
        TemplateTooCostly: it would.
    """
    if _LONG_NUMBER.search(form):
        raise TemplateTooCostly
    if "*" in form:
        _check_widths(args)
    budget.step(len(form) // 16)
    wide = MAX_WIDTH if "*" in form or re.search(r"\d{3}", form) else 100
    size = sum(budget.measure(each) for each in args)
    check_chars(len(form) + form.count("%") * (10 * wide + size))


def check_spec(spec: str) -> None:
    """Refuse a format specification of ``str.format`` that pads too far.

    Raises:
        TemplateTooCostly: it pads too far.
    """
    if _LONG_NUMBER.search(spec):
        raise TemplateTooCostly


def json_indent(indent: Any, separators: Any) -> int:
    """Return the most characters of indentation for each level of JSON.

    Raises:
        TemplateTooCostly: the indentation or the separators are too long.
    """
    width = len(indent) if isinstance(indent, str) else abs(indent or 0)
    _at_most(width, MAX_INDENT)
    for separator in separators or ():
        _at_most(len(separator), MAX_INDENT)
    return 2 * MAX_INDENT if separators else width


def items_of(value: Any) -> list[Any]:
    """Return the items of a value to join.

    Raises:
        TemplateTooCostly: they are too many.
    """
    if isinstance(value, str):
        _at_most(len(value), MAX_SPLIT_CHARS)
    return list(value)


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return arguments by position, or else by name."""
    return [*args[: len(names)], *(kwargs.get(name, "") for name in names[len(args) :])]


def _at_most(number: int, most: int) -> None:
    if number > most:
        raise TemplateTooCostly


def _check_widths(values: Any) -> None:
    for value in values:
        if isinstance(value, int | float) and not abs(value) <= MAX_WIDTH:
            raise TemplateTooCostly


def _check_indent(value: Any, rest: list[Any]) -> None:
    text, width = str(value), 4
    for each in rest:
        if isinstance(each, str):
            width = max(width, len(each))
        elif isinstance(each, int):
            width = max(width, each)
    num_lines = 1 + sum(text.count(end) for end in _LINE_ENDS)
    check_chars(len(text) + num_lines * width)


def _check_replace(text: str, args: Any) -> None:
    old, new = (*args, "", "")[:2]
    if isinstance(old, str) and isinstance(new, str):
        check_chars(len(text) + text.count(old) * len(new))


def _check_stripped(args: Any) -> None:
    for each in args:
        if isinstance(each, str):
            _at_most(len(each), MAX_STRIPPED_CHARS)


def _check_strip(_: str, args: Any) -> None:
    _check_stripped(args)


def _check_search(text: str, args: Any) -> None:
    """Refuse a slow search: Python's search from the end has no fast algorithm."""
    for each in args:
        if isinstance(each, str):
            _at_most(len(text) * len(each), MAX_SEARCH)


def _check_split(text: str, args: Any) -> None:
    _at_most(len(text), MAX_SPLIT_CHARS)
    _check_search(text, args)


def _check_width(_: str, args: Any) -> None:
    _check_widths(args)


def _check_tabs(text: str, args: Any) -> None:
    _check_widths(args)
    width = max((each for each in args if isinstance(each, int)), default=8)
    check_chars(len(text) + text.count("\t") * width)


_STR_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _check_width),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _check_strip),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _check_search),
    **dict.fromkeys(("split", "rsplit", "splitlines"), _check_split),
    "expandtabs": _check_tabs,
    "replace": _check_replace,
}


def check_join(budget: Budget, separator: str, items: list[Any]) -> None:
    """Refuse to join items to a text that would be too long.

    Raises:
        TemplateTooCostly: it is.
    """
    check_length(len(items))
    total = len(separator) * len(items)
    for item in items:
        total += len(item) if isinstance(item, str) else budget.measure(item)
        check_chars(total)
