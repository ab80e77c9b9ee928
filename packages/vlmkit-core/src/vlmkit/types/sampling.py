"""Sampling parameters of requests, with their bounds; the sampler applies them."""

import difflib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from vlmkit.errors import RequestError

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 128
MAX_TOP_LOGPROBS = 20
MAX_SUPPRESSED_TOKENS = 8192
MAX_SEQUENCES = 8192  # token sequences that are biased or forbidden
MAX_SEQUENCE_TOKENS = 64
MAX_ALLOWED_TOKENS = 16_384
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_REPEAT_WINDOW = 8192
MAX_DRY_TOKENS = 16_384
MAX_BREAKERS = 16
MAX_BREAKER_CHARS = 40
MAX_BREAKER_TOKENS = 20

NumTokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
TopK = Annotated[int, Meta(ge=0, le=1_000_000)]
MinP = Annotated[float, Meta(ge=0.0, le=1.0)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=10.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
LogitBias = Annotated[
    dict[Annotated[int, Meta(ge=0)], Annotated[float, Meta(ge=-100.0, le=100.0)]],
    Meta(max_length=1024),
]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
StopTokenId = Annotated[int, Meta(ge=0)]
StopTokenIds = Annotated[list[StopTokenId], Meta(max_length=MAX_STOP_TOKENS)]
NumChoices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
NumTop = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
TokenId = Annotated[int, Meta(ge=0)]
SuppressedTokens = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_SUPPRESSED_TOKENS)]
TokenSequence = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_SEQUENCE_TOKENS)]
BadWords = Annotated[tuple[TokenSequence, ...], Meta(max_length=MAX_SEQUENCES)]
SequenceBias = Annotated[
    tuple[tuple[TokenSequence, Annotated[float, Meta(ge=-1e9, le=1e9)]], ...],
    Meta(max_length=MAX_SEQUENCES),
]
NgramSize = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TypicalP = Annotated[float, Meta(gt=0.0, le=1.0)]
Cutoff = Annotated[float, Meta(ge=0.0, lt=1.0)]

AllowedTokens = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_ALLOWED_TOKENS)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
BadWordTexts = Annotated[tuple[BadWord, ...], Meta(max_length=MAX_BAD_WORDS)]
RepeatLastN = Annotated[int, Meta(ge=-1, le=MAX_REPEAT_WINDOW)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
DryMultiplier = Annotated[float, Meta(ge=0.0, le=100.0)]
DryBase = Annotated[float, Meta(ge=1.0, le=100.0)]
DryLength = Annotated[int, Meta(ge=0, le=MAX_DRY_TOKENS)]
DryWindow = Annotated[int, Meta(ge=-1, le=MAX_DRY_TOKENS)]
Breaker = Annotated[str, Meta(min_length=1, max_length=MAX_BREAKER_CHARS)]
Breakers = Annotated[tuple[Breaker, ...], Meta(max_length=MAX_BREAKERS)]

OF_MODELS = frozenset(
    {
        "min_length",
        "epsilon_cutoff",
        "eta_cutoff",
        "sequence_bias",
        "bad_words_ids",
        "no_repeat_ngram_size",
        "suppress_tokens",
        "begin_suppress_tokens",
    }
)
"""Fields of :class:`SamplingParams` that only model defaults may set, not HTTP bodies."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sampling parameters of a request, with bounds. The defaults are greedy decoding.

    They apply in this order: ``logit_bias`` and ``sequence_bias``, the repetition penalty, the
    presence, frequency and DRY penalties, bans, the temperature. The filters follow: top-k, top-p
    among the tokens that it keeps, min-p, typical-p, epsilon, eta, and XTC.

    Attributes:
        max_tokens: maximum number of tokens to generate; None is what the context holds.
        min_tokens: number of tokens before which no end-of-sequence token, stop token or stop
            string may end the answer.
        min_length: the same, counted with the prompt's tokens; the larger of both holds.
        temperature: divides the logits; below 1e-5 the likeliest token is chosen.
        top_p: keep the likeliest tokens whose probabilities, at the temperature, reach this sum,
            and any token exactly as likely as the last of them.
        top_k: keep this many likeliest tokens, and any as likely as the last; 1 chooses the
            likeliest; 0 keeps all.
        min_p: drop tokens less likely, at the temperature, than this fraction of the likeliest
            token's probability.
        typical_p: keep the tokens whose surprise is nearest to the mean until their probabilities,
            after the filters above, reach this sum (Meister et al., 2023, arXiv:2202.00666).
        epsilon_cutoff: drop tokens less likely than this, after the filters above, unless none is
            left (Hewitt et al., 2022, arXiv:2210.15191).
        eta_cutoff: the same with a bound that falls with the entropy (ibid.).
        xtc_probability: how often, at a temperature above 0, XTC applies after all filters (as in
            llama.cpp). It drops all tokens at least as likely as ``xtc_threshold``, except the
            least likely of them.
        xtc_threshold: the threshold of XTC; above 0.5 it never applies.
        repetition_penalty: divides positive and multiplies negative logits of every token in the
            prompt or the answer (Keskar et al., 2019, arXiv:1909.05858).
        repeat_last_n: number of newest tokens of prompt and answer that the three penalties
            consider (as in llama.cpp). 0 is none. -1 is all; presence and frequency then count only
            the answer.
        presence_penalty: subtracted once from the logits of tokens in the answer.
        frequency_penalty: subtracted for each occurrence of the token in the answer.
        dry_multiplier: the strength of the DRY penalty on tokens that would continue a run of
            tokens repeated from prompt or answer (as in llama.cpp); 0 disables it. The penalty is
            the multiplier times ``dry_base`` to the power of the run's excess length. That is its
            number of tokens over ``dry_allowed_length``.
        dry_base: the base of the DRY penalty.
        dry_allowed_length: shortest run that DRY penalises, in tokens.
        dry_penalty_last_n: number of newest tokens that DRY considers; -1 is the maximum.
        dry_sequence_breakers: texts that end runs of DRY, and are never penalised.
        logit_bias: added, before any penalty, to the logits of these token ids.
        sequence_bias: added, before any penalty, to the logit of the last token of each of these
            token sequences. Applies where the newest tokens of prompt and answer are the rest of
            the sequence.
        bad_words_ids: token sequences that the answer must not complete; an end-of-sequence token
            by itself is not suppressed.
        no_repeat_ngram_size: no run of this many tokens of prompt and answer may repeat; 0 allows
            all.
        suppress_tokens: token ids that are never chosen.
        begin_suppress_tokens: token ids that are not chosen first.
        bad_words: texts that the answer must not contain in their usual spelling, by themselves and
            after a space; tokens of the prompt do not count (as in vLLM).
        allowed_token_ids: the only token ids that may be chosen; empty for all (as in vLLM).
        thinking_token_budget: maximum number of reasoning tokens, without the delimiters (as in
            vLLM). The reasoning is then ended, and the answer continues. None is no limit.
            Reasoning that a model does not delimit does not count.
        seed: makes the choices repeatable; None draws a fresh seed.
        stop: strings that end the answer; not included in it.
        stop_token_ids: tokens that end the answer regardless of ``ignore_eos``; not included in it.
        include_stop_str_in_output: include the string or token that ended the answer.
        skip_special_tokens: omit special tokens, such as an end-of-sequence token, from the text.
        ignore_eos: continue after an end-of-sequence token, for benchmarks.
        logprobs: return the log-probability of each chosen token.
        top_logprobs: number of likeliest tokens to return at each position.
        n: number of answers to the same prompt.
    """

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    min_tokens: NumTokens = 0
    min_length: NumTokens = 0
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    typical_p: TypicalP = 1.0
    epsilon_cutoff: Cutoff = 0.0
    eta_cutoff: Cutoff = 0.0
    xtc_probability: Probability = 0.0
    xtc_threshold: Probability = 0.1
    repetition_penalty: RepetitionPenalty = 1.0
    repeat_last_n: RepeatLastN = -1
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    dry_multiplier: DryMultiplier = 0.0
    dry_base: DryBase = 1.75
    dry_allowed_length: DryLength = 2
    dry_penalty_last_n: DryWindow = -1
    dry_sequence_breakers: Breakers = ("\n", ":", '"', "*")
    logit_bias: LogitBias = {}
    sequence_bias: SequenceBias = ()
    bad_words_ids: BadWords = ()
    no_repeat_ngram_size: NgramSize = 0
    suppress_tokens: SuppressedTokens = ()
    begin_suppress_tokens: SuppressedTokens = ()
    bad_words: BadWordTexts = ()
    allowed_token_ids: AllowedTokens = ()
    thinking_token_budget: NumTokens | None = None
    seed: Seed | None = None
    stop: Annotated[tuple[StopString, ...], Meta(max_length=MAX_STOP_STRINGS)] = ()
    stop_token_ids: Annotated[tuple[StopTokenId, ...], Meta(max_length=MAX_STOP_TOKENS)] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: NumTop = 0
    n: NumChoices = 1

    def replaced(self, values: dict[str, Any]) -> "SamplingParams":
        """Return these parameters with some values replaced, after checking every bound.

        If ``min_tokens`` is not replaced, it is lowered to ``max_tokens``.

        Raises:
            RequestError: a name is unknown or a value out of range.
        """
        merged = msgspec.to_builtins(self) | values
        max_tokens = merged["max_tokens"]
        if "min_tokens" not in values and isinstance(max_tokens, int):
            merged["min_tokens"] = min(self.min_tokens, max(max_tokens, 0))
        return sampling_params(merged).checked()

    def checked(self) -> "SamplingParams":
        """Return these parameters after checking every bound and their combinations.

        Raises:
            RequestError: a value is out of range or two values contradict each other.
        """
        checked = sampling_params(msgspec.to_builtins(self))
        if checked.top_logprobs and not checked.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        if checked.max_tokens is not None and checked.min_tokens > checked.max_tokens:
            raise RequestError("min_tokens is over max_tokens", param="min_tokens")
        return checked


def sampling_params(values: dict[str, Any]) -> SamplingParams:
    """Return sampling parameters from plain values, after checking names, types and bounds.

    Raises:
        RequestError: names the first invalid field.
    """
    known = SamplingParams.__struct_fields__
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise RequestError(f"there is no sampling parameter {name!r}", param=name, hint=hint)
    try:
        return msgspec.convert(values, SamplingParams)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        param = path.rpartition("$.")[2].rstrip("`").split("[")[0] or None
        raise RequestError(f"{param or 'sampling parameters'}: {text}", param=param) from error
