"""Jinja's sandbox with limits on the cost of compiling and rendering a template.

Templates come with checkpoints and are untrusted. Everything that a template can repeat is counted,
and everything that can grow is measured before it grows. Nothing is computed at compile time. The
caller decides which values a template gets.
"""

import datetime as dt
import functools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
from jinja2.exceptions import SecurityError

from vlmkit_hf.templates.sandbox import guards
from vlmkit_hf.templates.sandbox.budget import (
    Budget,
    TemplateTooCostly,
    check_chars,
    check_int,
    check_length,
)
from vlmkit_hf.templates.sandbox.compiler import CountingCompiler, count_bodies

MAX_SOURCE_CHARS = 2**16
"""Characters of a template's source: compiling deeply nested text takes time and memory."""
MAX_VARIABLES = 2**9
"""Names that a template sets: the time of Jinja's compiler grows with their square."""
MAX_REPEATED = 2**20
MAX_POWER = 64
MAX_DATE_FORMAT_CHARS = 2**8
MAX_REFUSAL_CHARS = 2**9

_OWN_TYPES = (str, bytes, int, float, complex, list, tuple, dict, range)


class TemplateRefusal(jinja2.TemplateError):
    """An error that a template raises on purpose."""


class TemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Compiles and renders templates within limits; thread-safe."""

    code_generator_class = CountingCompiler
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self._counted_output,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        self._own = threading.local()
        self.globals = {
            "range": self.globals["range"],
            "dict": _dict,
            "namespace": _Namespace,
            "raise_exception": _refuse,
            "strftime_now": _now,
        }
        own = {"tojson": _to_json, "join": _join, "sum": _sum}
        self.filters = {
            name: self._bounded_filter(name, function)
            for name, function in {**self.filters, **own}.items()
        }
        self.tests = {name: self._bounded_test(name, test) for name, test in self.tests.items()}

    @property
    def budget(self) -> Budget:
        """The budget of the rendering in this thread.

        Raises:
            Impossible: there is no rendering, so Jinja is folding a constant at compile time.
        """
        budget: Budget | None = getattr(self._own, "budget", None)
        if budget is None:
            raise jinja2.nodes.Impossible
        return budget

    def render(
        self, template: jinja2.Template, values: Mapping[str, Any], *, max_steps: int
    ) -> str:
        """Return the rendered text of a template.

        Raises:
            TemplateTooCostly: the rendering exceeds a limit.
            Exception: any kind, since a template may raise anything.
        """
        self._own.budget = Budget(max_steps)
        try:
            return "".join(template.generate(values))
        finally:
            self._own.budget = None

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        if len(source) > MAX_SOURCE_CHARS:
            raise jinja2.TemplateSyntaxError(f"over {MAX_SOURCE_CHARS} characters", 1)
        tree = super()._parse(source, name, filename)
        stored = {node.name for node in tree.find_all(jinja2.nodes.Name) if node.ctx != "load"}
        if len(stored) > MAX_VARIABLES:
            raise jinja2.TemplateSyntaxError(f"sets over {MAX_VARIABLES} variables", 1)
        return count_bodies(tree)

    def count_steps(self, number: int) -> bool:
        """Count steps; always return True. Compiled templates call it."""
        return self.budget.step(number)

    def count(self, value: Any) -> Any:
        """Count and return a new value. Compiled templates call it."""
        return self.budget.count(value)

    def count_part(self, value: Any) -> Any:
        """Count and return a slice. Compiled templates call it."""
        return self.budget.count_part(value)

    def measured(self, value: Any) -> Any:
        """Return a value that may be compared or hashed. Compiled templates call it."""
        self.budget.measure(value)
        return value

    def literal(self, text: str) -> str:
        """Count and return text of the template itself. Compiled templates call it."""
        self.budget.write(len(text))
        return text

    def concatenate(self, values: Iterable[Any]) -> str:
        """Return values as one text. Compiled templates call it."""
        return self.join("", list(values))

    def join(self, separator: str, items: list[Any]) -> str:
        """Return items joined by a separator.

        Raises:
            TemplateTooCostly: the joined text would be too long.
        """
        guards.check_join(self.budget, separator, items)
        text: str = self.budget.count(separator.join(map(str, items)))
        return text

    def _counted_output(self, value: Any) -> Any:
        """Count a value that is written."""
        self.budget.write(self.budget.measure(value))
        return value

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Count a look-up, and do it."""
        self.budget.step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Count a look-up, and do it."""
        self.budget.step()
        if isinstance(argument, tuple):
            self.budget.measure(argument)
        return super().getitem(obj, argument)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Count a call, and do it.

        Raises:
            SecurityError: templates must not call it.
            TemplateTooCostly: the call would take too long, or its result would be too large.
        """
        budget, given = self.budget, (*args, *kwargs.values())
        budget.step(1 + check_length(len(given)) // 16)
        owner = getattr(obj, "__self__", None) if isinstance(obj, _METHODS) else None
        if isinstance(owner, _OWN_TYPES):
            name = obj.__name__
            if name == "join" and isinstance(owner, str) and len(given) == 1:
                return self.join(owner, guards.items_of(given[0]))
            guards.check_method(budget, owner, name, given)
            if name in guards.SAME_RESULT:
                return super().call(context, obj, *args, **kwargs)
        elif isinstance(owner, jinja2.runtime.LoopContext) or _is_measured(obj):
            for each in given:
                budget.measure(each)
        return budget.count(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operation whose result stays small."""
        self.budget.step()
        _check_numbers(operator, left, right)
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            check_chars(len(left) + len(right))
        elif operator == "*":
            _check_repeated(left, right)
        elif operator == "%" and isinstance(left, str):
            values = right if isinstance(right, tuple) else (right,)
            guards.check_percent(self.budget, left, values)
        return self.budget.count_part(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a bounded ``str.format`` for a ``format`` method; None for other values."""
        is_method = isinstance(value, _METHODS) and value.__name__ in ("format", "format_map")
        if not is_method or not isinstance(value.__self__, str):
            return None
        form, formatter = str(value.__self__), _Formatter(self)

        def format_within_limits(*args: Any, **kwargs: Any) -> str:
            if value.__name__ != "format":
                raise SecurityError("templates may not call 'format_map'")
            self.budget.measure(form)
            text: str = self.budget.count(formatter.vformat(form, args, kwargs))
            return text

        return format_within_limits

    def _bounded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        num_passed = int(hasattr(function, "jinja_pass_arg"))

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            passed, given = args[:num_passed], args[num_passed:]
            if name not in guards.SHALLOW_FILTERS:
                given = tuple(map(_listed, given))
            guards.check_filter(budget, name, given, kwargs)
            result = function(*passed, *given, **kwargs)
            return result if name in guards.SAME_RESULT else budget.count(result)

        return bounded

    def _bounded_test(self, name: str, function: Any) -> Callable[..., Any]:
        num_passed = int(hasattr(function, "jinja_pass_arg"))

        @functools.wraps(function)
        def bounded(*args: Any) -> Any:
            budget = self.budget
            budget.step()
            if name not in guards.SHALLOW_TESTS:
                for each in args[num_passed:]:
                    budget.measure(each)
            return function(*args)

        return bounded


class _Formatter(jinja2.sandbox.SandboxedFormatter):
    """Formats each field within the limits of a rendering."""

    _env: TemplateEnvironment

    def format_field(self, value: Any, format_spec: str) -> Any:
        guards.check_spec(format_spec)
        budget = self._env.budget
        budget.step()
        if not isinstance(value, int | float):
            budget.measure(value)
        return budget.count(super().format_field(value, format_spec))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._env.budget.measure(value)
        return super().convert_field(value, conversion)


class _GenerationBlock(jinja2.ext.Extension):
    """Accepts ``{% generation %}``, which marks answers in training templates."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without private names: Jinja's internals would call their values."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *pairs = args
        values = dict(*pairs, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError("a template's namespace takes no private names")


def _check_numbers(operator: str, left: Any, right: Any) -> None:
    """Refuse arithmetic of integers whose result is too long."""
    for value in (left, right):
        if isinstance(value, int):
            check_int(value)
    if operator == "**" and abs(right) > MAX_POWER:
        raise TemplateTooCostly


def _check_repeated(left: Any, right: Any) -> None:
    if hasattr(left, "__len__") or hasattr(right, "__len__"):
        items, number = (left, right) if hasattr(left, "__len__") else (right, left)
        if isinstance(number, int) and number * len(items) > MAX_REPEATED:
            raise TemplateTooCostly


def _is_measured(function: Any) -> bool:
    """Tell whether a function of this module inspects its arguments."""
    return any(function is each for each in (_dict, _refuse, _now))


def _listed(value: Any) -> Any:
    """Return the items of an iterator as a list, so that they can be measured."""
    is_loop = isinstance(value, jinja2.runtime.LoopContext)
    return list(value) if isinstance(value, Iterator) and not is_loop else value


@jinja2.pass_environment
def _join(environment: TemplateEnvironment, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return environment.join(str(d), guards.items_of(value))


@jinja2.pass_environment
def _sum(
    environment: TemplateEnvironment, iterable: Any, attribute: Any = None, start: Any = 0
) -> Any:
    if attribute is not None:
        iterable = map(jinja2.filters.make_attrgetter(environment, attribute), iterable)
    total = start
    for item in iterable:
        total = environment.call_binop(None, "+", total, item)
    return total


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _refuse(message: object) -> None:
    raise TemplateRefusal(str(message)[:MAX_REFUSAL_CHARS])


def _now(form: str) -> str:
    if len(form) > MAX_DATE_FORMAT_CHARS:
        raise TemplateTooCostly
    return dt.datetime.now().astimezone().strftime(form)


@jinja2.pass_environment
def _to_json(
    environment: TemplateEnvironment,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON, which Jinja's own filter would escape for HTML."""
    environment.budget.measure(value, guards.json_indent(indent, separators))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


_METHODS = (BuiltinMethodType, MethodType)
