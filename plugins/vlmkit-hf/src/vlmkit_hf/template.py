"""Chat templates: the Jinja text that says how a model's conversations are written.

Renders in Jinja's sandbox with the functions and filters that templates on the hub expect. Knows
nothing of tokens, and never sees what a client wrote: see :mod:`vlmkit_hf.sentinel`. How many
messages and tools there are is the client's, and some templates look at all of them for each: what
is looked up is counted while they are written, as is what they write.
"""

import datetime as dt
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from vlmkit.ask.prompt_options import PromptOptions
from vlmkit.errors import CheckpointError, RequestError
from vlmkit.seams.tokenizer import PLAIN
from vlmkit_hf.reasoning import Effort
from vlmkit_hf.sentinel import without_stand_ins

MAX_STEPS = 2**20  # that one conversation takes: a second or two
MAX_CHARS = 2**24  # that are written; what a client said is not among them
MAX_REPEATED = 2**20  # items of what a template repeats by a number
MAX_POWER = 64


class ChatTemplate:
    """One compiled chat template.

    Args:
        source: the Jinja text.
        tokens: the tokenizer's named special tokens, such as ``bos_token``.
        owner: the model's name, for errors.

    Attributes:
        effort: how it is told how much to think.

    Raises:
        CheckpointError: the text is not a Jinja template.
    """

    def __init__(self, source: str, tokens: Mapping[str, Any], owner: str) -> None:
        self._environment = environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(
                f"the chat template of {owner!r} is not valid Jinja",
                hint='give the model another one: tokenizer.chat_template = "PATH"',
            ) from error
        self._tokens = dict(tokens)
        self._variables = jinja2.meta.find_undeclared_variables(tree)
        literals = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)]
        constants = {n.value for n in tree.find_all(jinja2.nodes.Const) if isinstance(n.value, str)}
        self._literals = "\0".join([*literals, *constants])
        self.effort = Effort(self._variables, knows_none="none" in constants)
        self._names = {node.attr for node in tree.find_all(jinja2.nodes.Getattr)}
        self._names |= {
            node.value
            for parent in tree.find_all((jinja2.nodes.Getitem, jinja2.nodes.Call))
            for node in parent.iter_child_nodes()
            if isinstance(node, jinja2.nodes.Const)
        }

    @property
    def takes_tools(self) -> bool:
        """Whether it says anything about tools."""
        return "tools" in self._variables

    def asks_for(self, name: str) -> bool:
        """Tell whether the template looks a field of this name up, of whatever it is."""
        return name in self._names

    def mentions(self, text: str) -> bool:
        """Tell whether the template itself writes, or asks about, this text."""
        return text in self._literals

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> str:
        """Return the conversation as text, up to where the answer begins or the last message ends.

        Raises:
            RequestError: the template refuses the conversation, or fails on it.
        """
        values = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": options.begins_answer,
            **self._tokens,
        }
        own = self.effort.values(options.reasoning_effort) | dict(options.chat_template_kwargs)
        if taken := values.keys() & own.keys():
            raise RequestError(
                f"a chat template has {min(taken)!r} of its own", param="chat_template_kwargs"
            )
        try:
            return self._environment.written(self._template, values | own)
        except RequestError:
            raise
        except _Refusal as error:
            raise RequestError(
                "the model's chat template refuses this conversation: "
                f"{without_stand_ins(str(error))!r}",
                param="messages",
            ) from error
        except Exception as error:  # a template may raise anything
            raise RequestError(
                "the model's chat template cannot write this conversation", param="messages"
            ) from error


class _Refusal(jinja2.TemplateError):
    """What a template raises on purpose."""


class _GenerationBlock(jinja2.ext.Extension):
    """Accepts ``{% generation %}``, with which training templates mark answers."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without private names: Jinja's internals would call what they hold."""

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
        raise jinja2.exceptions.SecurityError("a template's namespace takes no private names")


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which counts what a template does; any number of threads may use it."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._own = threading.local()

    def written(self, template: jinja2.Template, values: Mapping[str, Any]) -> str:
        """Return what a template writes.

        Raises:
            RequestError: it takes too long, or writes too much.
        """
        self._own.num_steps = 0
        pieces, num_chars = [], 0
        for piece in template.generate(values):
            num_chars += len(piece)
            if num_chars > MAX_CHARS:
                raise _too_much()
            pieces.append(piece)
        return "".join(pieces)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Count a look-up, and do it."""
        self._step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Count a look-up, and do it."""
        self._step()
        return super().getitem(obj, argument)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Count a call, and do it."""
        self._step()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Multiply what stays small."""
        if operator == "**":
            if abs(right) > MAX_POWER:
                raise _too_much()
        elif hasattr(left, "__len__") or hasattr(right, "__len__"):
            items, number = (left, right) if hasattr(left, "__len__") else (right, left)
            if isinstance(number, int) and number * len(items) > MAX_REPEATED:
                raise _too_much()
        return super().call_binop(context, operator, left, right)

    def _step(self) -> None:
        self._own.num_steps += 1
        if self._own.num_steps > MAX_STEPS:
            raise _too_much()


def _too_much() -> RequestError:
    return RequestError(
        "the model's chat template takes too long to write this conversation",
        param="messages",
        hint="send fewer messages, or fewer tools",
    )


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.globals = {
        "range": environment.globals["range"],
        "dict": _dict,
        "namespace": _Namespace,
        "raise_exception": _refuse,
        "strftime_now": _now,
    }
    environment.filters["tojson"] = _to_json
    return environment


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _refuse(message: object) -> None:
    raise _Refusal(str(message))


def _now(form: str) -> str:
    return dt.datetime.now().astimezone().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON; Jinja's own filter escapes it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
