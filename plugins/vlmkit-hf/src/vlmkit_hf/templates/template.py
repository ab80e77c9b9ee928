"""Chat templates: the Jinja text that says how a model's conversations are written.

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
"""Steps of one conversation: a second or two."""
MAX_PROBE_STEPS = 2**16
"""Steps of each conversation that is written while a model is loaded."""
HINT = 'give the model another one: tokenizer.chat_template = "PATH"'


class ChatTemplate:
    """One compiled chat template.

    Args:
        source: the Jinja text.
        tokens: the tokenizer's named special tokens, such as ``bos_token``.
        owner: the model's name, for errors.
        origin: the template's name and file, for errors.

    Attributes:
        effort: how it is told how much to think.
        label: how errors call it.

    Raises:
        CheckpointError: the text is not a Jinja template, or too long or too deeply nested.
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
        except Exception as error:  # nesting and numbers fail in Python's own compiler, too
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
        *,
        is_probe: bool = False,
    ) -> str:
        """Return the conversation as text, up to where the answer begins or the last message ends.

        Args:
            messages: the conversation.
            tools: what the model may call.
            options: how it is to be written.
            is_probe: the conversation is one of ours, with the lower limits of such.

        Raises:
            TemplateTooCostly: a limit is exceeded.
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
            max_steps = MAX_PROBE_STEPS if is_probe else MAX_STEPS
            return self._environment.render(self._template, values | own, max_steps=max_steps)
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
