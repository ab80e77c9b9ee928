"""Bodies of requests to ``/v1/completions``: shapes and limits, no behaviour."""

from typing import Annotated

from msgspec import Meta

from vlmkit.types.sampling import NumChoices, NumTop
from vlmkit_server.apis.openai_chat.wire import NotSupported, refused_names
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.plain_prompts import PlainInput
from vlmkit_server.wire.sampling_fields import SamplingFields


class CompletionRequest(SamplingFields, kw_only=True):
    """The body of ``POST /v1/completions``."""

    prompt: PlainInput
    echo: bool | None = None
    logprobs: NumTop | None = None
    prompt_logprobs: NumTop | None = None  # an extension
    best_of: NumChoices | None = None
    add_special_tokens: bool | None = None

    # Refused: not supported here, or a field of the chat API only.
    suffix: Annotated[str, Meta(max_length=0)] | None = None
    max_completion_tokens: NotSupported = None
    top_logprobs: NotSupported = None


_REFUSED = {"suffix"} | refused_names(CompletionRequest)
_HINTS = ("thinking_token_budget",)  # plain texts have no separate reasoning
COMPLETIONS = BodyReader(CompletionRequest, _REFUSED, _HINTS, takes_added=True)


class RenderCompletionRequest(CompletionRequest, kw_only=True):
    """The body of ``POST /v1/completions/render``; texts are light anyway."""

    light: bool | None = None


RENDER_COMPLETIONS = COMPLETIONS.of(RenderCompletionRequest)
