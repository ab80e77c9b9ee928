"""Bodies of Ollama's API: shapes and limits, no behaviour."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from vlmkit.types.sampling import (
    MinP,
    NumTop,
    Penalty,
    RepeatLastN,
    RepetitionPenalty,
    Seed,
    StopString,
    StopStrings,
    Temperature,
    TopP,
    TypicalP,
)
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.sampling_fields import Label, ModelName, TopKOrAll
from vlmkit_server.wire.tool_fields import Arguments, Tools

MAX_MESSAGES = 2048
MAX_IMAGES = 4096  # of any model; each has its own limit
MAX_CALLS = 128  # of one message
MAX_TEXTS = 2048  # to embed

ModelNameOrEmpty = Annotated[str, Meta(max_length=512)]

Images = Annotated[list[str], Meta(max_length=MAX_IMAGES)] | None
"""Image files in base64, or as ``data:`` URLs."""

KeepAlive = float | Label | None
"""How long a model stays in memory: seconds, or a duration such as ``5m``."""

Think = bool | Literal["low", "medium", "high", "max"] | None
"""Whether the model should reason, or how much."""


class Options(msgspec.Struct, kw_only=True):
    """The sampling parameters, which other APIs have as fields of the body."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopKOrAll | None = None
    min_p: MinP | None = None
    typical_p: TypicalP | None = None
    repeat_penalty: RepetitionPenalty | None = None
    repeat_last_n: RepeatLastN | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None
    seed: Seed | None = None
    stop: StopString | StopStrings | None = None


class OtherOptions(msgspec.Struct):
    """Options where nothing is sampled: none has an effect."""


class SentFunction(msgspec.Struct, kw_only=True):
    """The function of a call, and its arguments."""

    name: Label
    arguments: Arguments = None
    index: int | None = None  # the order of the list counts


class SentToolCall(msgspec.Struct, kw_only=True):
    """A call of an earlier answer."""

    function: SentFunction
    id: Label | None = None
    type: Label | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Images = None
    tool_calls: Annotated[list[SentToolCall], Meta(max_length=MAX_CALLS)] | None = None
    tool_name: Label | None = None
    tool_call_id: Label | None = None


class AnswerFields(msgspec.Struct, kw_only=True):
    """The fields that ``/api/chat`` and ``/api/generate`` share.

    A schema in ``format`` is decoded only after its length is checked.
    """

    model: ModelName | None = None
    stream: bool | None = True
    format: Raw = msgspec.field(default_factory=Raw)
    think: Think = None
    options: Options | None = None
    logprobs: bool | None = None
    top_logprobs: NumTop | None = None
    keep_alive: KeepAlive = None


class OllamaChatRequest(AnswerFields, kw_only=True):
    """The body of ``POST /api/chat``; without messages, it loads the model."""

    messages: Annotated[list[ChatMessage], Meta(max_length=MAX_MESSAGES)] = []
    tools: Tools | None = None


class OllamaGenerateRequest(AnswerFields, kw_only=True):
    """The body of ``POST /api/generate``; without a prompt, it loads the model."""

    prompt: str | None = None
    system: str | None = None
    images: Images = None


class EmbedRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /api/embed``."""

    input: str | Annotated[list[str], Meta(max_length=MAX_TEXTS)]
    model: ModelName | None = None
    dimensions: int | None = None
    options: OtherOptions | None = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /api/embeddings``, which Ollama replaced with ``/api/embed``."""

    prompt: str
    model: ModelName | None = None
    options: OtherOptions | None = None


class ShowRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /api/show``; Ollama's command leaves one of both names empty."""

    model: ModelNameOrEmpty | None = None
    name: ModelNameOrEmpty | None = None  # the older name of the field
    verbose: bool | None = None


_INNER = "options."
CHAT = BodyReader(OllamaChatRequest, hints=("keep_alive",), takes_added=True, inner=_INNER)
GENERATE = BodyReader(OllamaGenerateRequest, hints=("keep_alive",), takes_added=True, inner=_INNER)
EMBED = BodyReader(EmbedRequest, about=frozenset({"prompt", "vector"}), inner=_INNER)
EMBEDDINGS = BodyReader(EmbeddingsRequest, about=frozenset({"prompt", "vector"}), inner=_INNER)
SHOW = BodyReader(ShowRequest, about=frozenset())
