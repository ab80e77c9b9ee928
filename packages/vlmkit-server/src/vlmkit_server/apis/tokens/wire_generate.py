"""Bodies of ``/inference/v1/generate``: shapes and bounds, no behaviour.

The shapes are vLLM's. Arrays of images are no part of them: pictures are sent as such.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.types.image_options import Detail
from vlmkit.types.sampling import (
    AllowedTokens,
    BadWordTexts,
    Breakers,
    DryBase,
    DryLength,
    DryMultiplier,
    DryWindow,
    LogitBias,
    MinP,
    NumChoices,
    NumTokens,
    NumTop,
    Penalty,
    Probability,
    RepeatLastN,
    RepetitionPenalty,
    Seed,
    StopString,
    StopStrings,
    StopTokenIds,
    Temperature,
    TopP,
    TypicalP,
)
from vlmkit_server.apis.openai_chat.rendering import TokenRange
from vlmkit_server.apis.openai_chat.wire import (
    ImageLimits,
    MaxImageTokens,
    NotSupported,
    refused_names,
)
from vlmkit_server.wire.answer_forms import StructuredOutputs
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.plain_prompts import TokenIds
from vlmkit_server.wire.sampling_fields import Label, ModelName, StreamOptions

MAX_IMAGES = 4096  # of any model; each has its own bound
RequestId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._~:-]{1,128}$")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class GenerateParams(msgspec.Struct, kw_only=True):
    """How tokens are chosen."""

    n: NumChoices | None = None
    max_tokens: NumTokens | None = None
    min_tokens: NumTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: MinP | None = None
    typical_p: TypicalP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    repeat_last_n: RepeatLastN | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Probability | None = None
    dry_multiplier: DryMultiplier | None = None
    dry_base: DryBase | None = None
    dry_allowed_length: DryLength | None = None
    dry_penalty_last_n: DryWindow | None = None
    dry_sequence_breakers: Breakers | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    bad_words: BadWordTexts | None = None
    allowed_token_ids: AllowedTokens | None = None
    thinking_token_budget: NotSupported = None  # plain tokens have no reasoning apart
    seed: Seed | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    logprobs: NumTop | None = None
    prompt_logprobs: NumTop | None = None
    structured_outputs: StructuredOutputs | None = None


class Placeholders(msgspec.Struct, kw_only=True):
    """Where the images are, in order."""

    image: Annotated[list[TokenRange], Meta(max_length=MAX_IMAGES)]
    audio: NotSupported = None
    video: NotSupported = None


class MediaHashes(msgspec.Struct, kw_only=True):
    """What the images were when they were rendered."""

    image: Annotated[list[Digest], Meta(max_length=MAX_IMAGES)]
    audio: NotSupported = None
    video: NotSupported = None


class GenerateFeatures(msgspec.Struct, kw_only=True):
    """The images among the tokens, in order, each by its own file or address."""

    mm_placeholders: Placeholders
    mm_hashes: MediaHashes | None = None
    image_urls: Annotated[list[str], Meta(max_length=MAX_IMAGES)] | None = None  # ours
    kwargs_data: NotSupported = None
    mm_metadata: NotSupported = None


class ShownImage(msgspec.Struct, kw_only=True):
    """How large an image was shown when it was rendered; what else is told of it has no effect."""

    detail: Detail | None = None
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None
    num_tokens: int | None = None
    width: int | None = None
    height: int | None = None
    used_width: int | None = None
    used_height: int | None = None
    page: int | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /inference/v1/generate``."""

    token_ids: TokenIds
    sampling_params: GenerateParams | None = None
    model: ModelName | None = None
    request_id: RequestId | None = None
    features: GenerateFeatures | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Label | None = None
    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None

    images: Annotated[list[ShownImage], Meta(max_length=MAX_IMAGES)] | None = None  # ours

    # What a prompt was rendered with besides; without effect.
    prompt: str | None = None
    num_tokens: int | None = None
    max_model_len: int | None = None

    # Refused.
    ec_transfer_params: NotSupported = None
    kv_transfer_params: NotSupported = None


GENERATE = BodyReader(
    GenerateRequest,
    refused_names(GenerateRequest, GenerateParams, GenerateFeatures, Placeholders),
    takes_added=True,
    inner="sampling_params.",
)
