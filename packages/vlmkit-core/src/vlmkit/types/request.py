"""What someone asks of a runner: a conversation and how to answer it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from vlmkit.errors import RequestError
from vlmkit.types.constraint import Constraint, check_constraint
from vlmkit.types.demand import Demand
from vlmkit.types.image import Image
from vlmkit.types.message import Message, images_of
from vlmkit.types.placed_image import PlacedImage
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.tool_choice import NamedTool, ToolChoice, check_tool_choice

BACKGROUND = 1001
"""A priority of requests that nobody waits for: no account's turn puts those before others'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        messages: the conversation so far.
        text: a plain text in place of messages, to be read as it is, without a chat template.
        token_ids: the tokens of such a text, in its place.
        images: what is shown among ``token_ids``, in order; a conversation has its own in messages.
        adds_special: whether a plain text gets the tokens that the tokenizer puts around any.
        task: what is wanted: an answer, a vector, or how likely given tokens are.
        continuations: what is scored, texts or tokens, each by itself, as what follows the prompt;
            with none, the prompt's own tokens are, a choice for each of its texts: see
            :attr:`vlmkit.types.prompt_tokens.PromptTokens.texts`.
        params: how to choose tokens; None takes the model's own defaults.
        clamp_max_tokens: whether a ``max_tokens`` above what the context, or the operator's limit,
            leaves is lowered to that; otherwise it is an error.
        fields: what it says by fields that plugins added to requests, by their names; values as
            JSON has them.
        constraint: what the answer must keep to; None leaves it free.
        tools: definitions of what the answer may call, in OpenAI's form.
        tool_choice: whether it may, must or must not call, or the one that it must call.
        parallel_tool_calls: whether it may call more than once.
        strict_tools: names of tools whose schemas must be enforced in all their keywords, besides
            those whose definitions say ``"strict": true``. Of other schemas, what cannot be
            enforced is left out; ``admit`` is called with what that is.
        options: how the template writes the conversation.
        places: whether places that the answer names in its one image are told as numbers.
        tenant: whose request it is; caches are never shared between tenants.
        account: on whose account it is computed, where several share what there is; the tenant's
            when empty.
        cache_salt: keeps a tenant's own requests apart in all caches, but for those of equal salt.
        priority: smaller runs first; from :data:`BACKGROUND` on, after all that others ask, too.
        trace: what it belongs to, as W3C Trace Context writes that, for those who trace; or empty.
        id: how logs and answers call it; made up when empty.
        admit: is called once, in any thread, with what the request comes to, when its prompt is
            made and before it waits for its turn; what it raises refuses the request. It stays with
            whoever asks: a request that travels has none.
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
    admit: Callable[[Demand], None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.priority, int):  # it would break the order of everybody's queue
            raise RequestError("priority must be a whole number", param="priority")
        check_constraint(self.constraint)
        check_tool_choice(self.tool_choice, self.tools)

    @property
    def decoded_images(self) -> list[Image]:
        """Images that are decoded for it, but for those in files that are not opened yet."""
        if self.options.light:
            return []
        return [*images_of(self.messages), *(placed.image for placed in self.images)]

    def __getstate__(self) -> list[Any]:
        """Return what travels."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return list((values | {"admit": None}).values())
