"""The fields of every body that requests an answer: sampling, streaming and scheduling.

Types and limits are those of :class:`vlmkit.SamplingParams`, which checks combinations.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

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
from vlmkit_server.wire.answer_forms import Formed

Label = Annotated[str, Meta(max_length=512)]
TopKOrAll = Annotated[int, Meta(ge=-1, le=1_000_000)]
"""As :data:`vlmkit.types.sampling.TopK`; -1 also keeps all tokens."""

ModelName = Annotated[str, Meta(min_length=1, max_length=512)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: each event has usage
    include_obfuscation: bool | None = None


class AnswerFields(Formed, kw_only=True):
    """The fields about the answer that the bodies of all APIs share."""

    model: ModelName | None = None
    stream: bool | None = None

    max_tokens: NumTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None

    # Not in OpenAI's API.
    top_k: TopKOrAll | None = None
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
    bad_words: BadWordTexts | None = None
    allowed_token_ids: AllowedTokens | None = None
    thinking_token_budget: NumTokens | None = None
    min_tokens: NumTokens | None = None
    ignore_eos: bool | None = None
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    cache_salt: Label | None = None
    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None


class SamplingFields(AnswerFields, kw_only=True):
    """The fields about the answer that the bodies of OpenAI's APIs share."""

    stream_options: StreamOptions | None = None
    stop: StopString | StopStrings | None = None
    n: NumChoices | None = None
    user: Label | None = None  # without effect by its own definition
    return_token_ids: bool | None = None  # not in OpenAI's API
