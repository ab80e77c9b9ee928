"""Compiles and renders one chat template, the Jinja text that formats a model's conversations.

Renders in a sandbox with the functions and filters that templates on the hub expect. Tokenizes
nothing and never handles client text; see :mod:`vlmkit_hf.templates.stand_ins`. The limits on what
a template costs are those of :mod:`vlmkit_hf.templates.sandbox`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes

from vlmkit.errors import CheckpointError, RequestError
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_hf.templates.reasoning import Effort
from vlmkit_hf.templates.sandbox.environment import TemplateEnvironment, TemplateRefusal
from vlmkit_hf.templates.stand_ins import without_stand_ins

MAX_STEPS = 2**20
"""Steps of one conversation: one or two seconds."""
MAX_PROBE_STEPS = 2**16
"""Steps of each probe conversation that is rendered while a model is loaded."""
HINT = 'give the model another one: tokenizer.chat_template = "PATH"'


class ChatTemplate:
    """One compiled chat template.

    Args:
        source: the Jinja text.
        tokens: the tokenizer's named special tokens, such as ``bos_token``.
        owner: the model's name, for errors.
        origin: the template's name and file, for errors; empty if unknown.

    Attributes:
        effort: how the template takes a reasoning effort.
        label: the template's description in errors.

    Raises:
        CheckpointError: the text is not a Jinja template, or is too long or too deeply nested.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, Any], owner: str, origin: str = ""
    ) -> None:
        self.label = f"the chat template{origin and f' {origin}'} of {owner!r}"
        self._environment = environment = TemplateEnvironment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(tree)
            self._variables = jinja2.meta.find_undeclared_variables(tree)
        except Exception as error:  # deep nesting and long numbers fail in Python's own compiler
            where = (
                f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            )
            raise CheckpointError(f"{self.label} is not valid Jinja{where}", hint=HINT) from error
        self._tokens = dict(tokens)
        literals = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)]
        constants = {n.value for n in tree.find_all(jinja2.nodes.Const) if isinstance(n.value, str)}
        self._literals = "\0".join([*literals, *constants])
        self.effort = Effort(self._variables, knows_none="none" in constants)
        self._names = {node.attr for node in tree.find_all(jinja2.nodes.Getattr)}
        self._names |= {
            node.value
            for parent in tree.find_all((jinja2.nodes.Getitem, jinja2.nodes.Call))
            for node in parent.iter_child_nodes()
            if isinstance(node, jinja2.nodes.Const) and isinstance(node.value, str)
        }

    @property
    def takes_tools(self) -> bool:
        """Whether the template uses tools."""
        return "tools" in self._variables

    def looks_up(self, name: str) -> bool:
        """Tell whether the template looks up a field of this name, on any object."""
        return name in self._names

    def mentions(self, text: str) -> bool:
        """Tell whether the template itself writes this text, or compares with it."""
        return text in self._literals

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
        *,
        is_probe: bool = False,
    ) -> str:
        """Return the conversation up to the start of the answer, or the end of the last message.

        Args:
            messages: the conversation.
            tools: the tools that the model may call.
            options: the prompt options of the request.
            is_probe: whether this is a probe at load, with lower limits.

        Raises:
            TemplateTooCostly: the rendering exceeds a limit.
            RequestError: the template refuses the conversation, or fails on it.
        """
        values = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": options.begins_answer,
            **self._tokens,
        }
        extra = self.effort.values(options.reasoning_effort) | dict(options.chat_template_kwargs)
        if reserved := values.keys() & extra.keys():
            raise RequestError(
                f"chat_template_kwargs cannot set {min(reserved)!r}, which every template gets",
                param="chat_template_kwargs",
            )
        try:
            max_steps = MAX_PROBE_STEPS if is_probe else MAX_STEPS
            return self._environment.render(self._template, values | extra, max_steps=max_steps)
        except RequestError:
            raise
        except TemplateRefusal as error:
            raise RequestError(
                "the model's chat template refuses this conversation: "
                f"{without_stand_ins(str(error))!r}",
                param="messages",
            ) from error
        except Exception as error:  # a template may raise anything
            raise RequestError(
                "the model's chat template cannot write this conversation", param="messages"
            ) from error
