"""Requests to a runner: a conversation, and how to answer it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vlmkit.errors import RequestError
from vlmkit.types.constraint import Constraint, check_constraint
from vlmkit.types.image import Image
from vlmkit.types.message import Message, images_of
from vlmkit.types.placed_image import PlacedImage
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.tool_choice import NamedTool, ToolChoice, check_tool_choice

BACKGROUND = 1001
"""The first priority of background requests, which run after the foreground requests of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        messages: the conversation so far.
        text: a plain text instead of messages, used without a chat template.
        token_ids: the tokens of a prompt, instead of messages or a text.
        images: the images among ``token_ids``, in order; images of a conversation are in messages.
        adds_special: whether the tokenizer adds its special tokens around a plain text.
        task: the kind of result: an answer, a vector, or the likelihood of given tokens.
        continuations: texts or tokens to score, each separately as a continuation of the prompt.
            If empty, the prompt's own tokens are scored, with one choice for each of its texts: see
            :attr:`vlmkit.types.prompt_tokens.PromptTokens.texts`.
        params: sampling parameters; None uses the model's own defaults.
        clamp_max_tokens: whether a too large ``max_tokens`` is lowered to what the context and the
            operator's limit leave; otherwise it is an error.
        fields: values of plugins' request fields, by name, as JSON values.
        constraint: the constraint of the answer; None for none.
        tools: definitions of the tools that the answer may call, in OpenAI's form.
        tool_choice: whether the answer may, must or must not call tools, or the tool that it must
            call.
        parallel_tool_calls: whether the answer may call more than once.
        strict_tools: names of tools whose schemas must be enforced in full, besides those defined
            with ``"strict": true``. Keywords of other schemas are dropped if they cannot be
            enforced; the request's :class:`~vlmkit.types.demand.Demand` lists them.
        options: options of the chat template.
        places: whether boxes and points that the answer names in its one image are returned as
            numbers.
        tenant: the tenant that sent the request; caches are never shared between tenants.
        account: the tenant of the fair queue whose share the request uses; ``tenant`` when empty.
        cache_salt: separates requests of one tenant in all caches; equal salts share.
        priority: smaller runs first; from :data:`BACKGROUND` on, after all foreground requests.
        trace: the trace that it belongs to, in the format of W3C Trace Context; empty if none.
        id: its id in logs and answers; generated when empty.
    """

    messages: Sequence[Message] = ()
    text: str | None = None
    token_ids: Sequence[int] | None = None
    images: Sequence[PlacedImage] = ()
    adds_special: bool = True
    task: Literal["generate", "embed", "score"] = "generate"
    continuations: Sequence[str | Sequence[int]] = ()
    params: SamplingParams | None = None
    clamp_max_tokens: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    constraint: Constraint | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: ToolChoice | NamedTool = "auto"
    parallel_tool_calls: bool = True
    strict_tools: Sequence[str] = ()
    options: PromptOptions = field(default_factory=PromptOptions)
    places: bool = False
    tenant: str = ""
    account: str = ""
    cache_salt: str = ""
    priority: int = 0
    trace: str = ""
    id: str = field(default="")

    def __post_init__(self) -> None:
        if not isinstance(self.priority, int):  # it would break the order of the shared queue
            raise RequestError("priority must be a whole number", param="priority")
        if self.constraint is not None:
            check_constraint(self.constraint)
        check_tool_choice(self.tool_choice, self.tools)

    @property
    def decoded_images(self) -> list[Image]:
        """The images to decode, without those in files that are not opened yet."""
        if self.options.light:
            return []
        return [*images_of(self.messages), *(placed.image for placed in self.images)]
