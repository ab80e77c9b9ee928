"""Default sampling parameters of a model, from its ``generation_config.json``.

One table lists how each field of transformers' ``GenerationConfig`` is handled. The code, the
documentation (docs/reference/folders.md) and ``vlmkit doctor`` use it. Chooses no token, and does
not read end-of-sequence tokens, which the tokenizer does.
"""

import logging
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from vlmkit.errors import RequestError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.sampling import SamplingParams, sampling_params

log = logging.getLogger(__name__)

FILE = "generation_config.json"
MAX_SHOWN_CHARS = 60

Action = Literal["implemented", "implemented with do_sample", "reported", "no effect"]


class Field(NamedTuple):
    """How one field is handled.

    Attributes:
        name: its name in the file; also the name of the sampling parameter, if it is implemented.
        action: ``reported`` for a field that is ignored although ``generate`` follows it;
            ``no effect`` for a field that changes no token here, such as a cache setting.
        reason: how it is followed, or why not.
        neutral: values besides null that have no effect.
    """

    name: str
    action: Action
    reason: str
    neutral: tuple[Any, ...] = ()


FIELDS = (
    Field("do_sample", "implemented", "false or absent takes the likeliest token"),
    Field("temperature", "implemented with do_sample", "1 where it is absent", (1,)),
    Field("top_k", "implemented with do_sample", "absent keeps all tokens, not 50", (0,)),
    Field("top_p", "implemented with do_sample", "", (1,)),
    Field("min_p", "implemented with do_sample", "", (0,)),
    Field("typical_p", "implemented with do_sample", "", (1,)),
    Field("epsilon_cutoff", "implemented with do_sample", "", (0,)),
    Field("eta_cutoff", "implemented with do_sample", "", (0,)),
    Field("top_h", "reported", "the sampler has no such filter"),
    Field("repetition_penalty", "implemented", "", (1,)),
    Field("no_repeat_ngram_size", "implemented", "", (0,)),
    Field("sequence_bias", "implemented", "pairs of token ids and a bias", ([],)),
    Field("bad_words_ids", "implemented", "", ([],)),
    Field("suppress_tokens", "implemented", "", ([],)),
    Field("begin_suppress_tokens", "implemented", "", ([],)),
    Field("min_new_tokens", "implemented", "`min_tokens`: stop strings wait, too", (0,)),
    Field("min_length", "implemented", "counts the prompt; `min_new_tokens` wins", (0,)),
    Field("stop_strings", "implemented", "`stop`: a request's own replaces it", ([], "")),
    Field("eos_token_id", "implemented", "with the tokens that end a turn in the vocabulary"),
    Field("renormalize_logits", "no effect", "changes no choice"),
    Field("max_new_tokens", "reported", "requests say `max_tokens`; else the context is the limit"),
    Field(
        "max_length", "reported", "requests say `max_tokens`; else the context is the limit", (20,)
    ),
    Field("max_time", "reported", "`server.request_timeout_s` limits requests"),
    Field("forced_bos_token_id", "reported", "acts after prompts of one token only"),
    Field("forced_eos_token_id", "reported", "would make answers that are cut off look whole"),
    Field("num_beams", "reported", "there is no beam search: one token is chosen at a time", (1,)),
    Field("num_beam_groups", "reported", "there is no beam search", (1,)),
    Field("diversity_penalty", "reported", "there is no beam search", (0,)),
    Field("constraints", "reported", "there is no beam search", ([],)),
    Field("force_words_ids", "reported", "there is no beam search", ([],)),
    Field("length_penalty", "no effect", "orders beams"),
    Field("early_stopping", "no effect", "ends beams"),
    Field("num_return_sequences", "reported", "requests say `n`", (1,)),
    Field("penalty_alpha", "reported", "there is no contrastive search", (0,)),
    Field("dola_layers", "reported", "engines give the logits of the last layer"),
    Field("guidance_scale", "reported", "prompts are computed once, without a negative one", (1,)),
    Field("encoder_repetition_penalty", "reported", "the sampler has no such penalty", (1,)),
    Field("encoder_no_repeat_ngram_size", "reported", "the sampler has no such rule", (0,)),
    Field("exponential_decay_length_penalty", "reported", "the sampler has no such penalty"),
    Field("remove_invalid_values", "reported", "a request whose logits are NaN fails", (False,)),
    Field("watermarking_config", "reported", "answers are not watermarked"),
    Field("token_healing", "reported", "prompts are taken as they are", (False,)),
    *(
        Field(name, "no effect", "of caches and of how a forward pass is computed")
        for name in (
            "use_cache",
            "cache_implementation",
            "cache_config",
            "max_cache_len",
            "prefill_chunk_size",
            "low_memory",
            "compile_config",
            "disable_compile",
            "continuous_batching_config",
        )
    ),
    *(
        Field(name, "no effect", "of speculation, which changes no token; see `proposer`")
        for name in (
            "use_mtp",
            "is_assistant",
            "num_assistant_tokens",
            "num_assistant_tokens_schedule",
            "assistant_confidence_threshold",
            "prompt_lookup_num_tokens",
            "max_matching_ngram_size",
            "assistant_early_exit",
            "assistant_lookbehind",
            "target_lookbehind",
            "assistant_ensemble_weight",
            "speculation_type",
        )
    ),
    *(
        Field(name, "no effect", "of what `generate` returns, or of padding")
        for name in (
            "output_attentions",
            "output_hidden_states",
            "output_scores",
            "output_logits",
            "return_dict_in_generate",
            "pad_token_id",
            "bos_token_id",
            "decoder_start_token_id",
            "transformers_version",
        )
    ),
)
"""All fields of ``GenerationConfig``; ``generate`` has no others."""

_PARAMETER_OF = {"min_new_tokens": "min_tokens", "stop_strings": "stop"}
_NO_PARAMETER = frozenset({"do_sample", "eos_token_id"})


class Finding(NamedTuple):
    """A value of ``generation_config.json`` that is ignored.

    Attributes:
        field: the name of the field.
        value: the value in the file, shortened.
        reason: why it is ignored.
    """

    field: str
    value: str
    reason: str


def default_params(checkpoint: Checkpoint) -> SamplingParams:
    """Return a model's default sampling parameters, from ``generation_config.json``.

    Without ``do_sample`` decoding is greedy. Values that are not implemented or out of bounds are
    dropped, each with a warning in the log.
    """
    params, findings = read_generation_config(checkpoint)
    for finding in findings:
        log.warning(
            "model %r: generation_config.json: %s = %s is ignored: %s", checkpoint.name, *finding
        )
    return params


def read_generation_config(checkpoint: Checkpoint) -> tuple[SamplingParams, list[Finding]]:
    """Return a model's default sampling parameters, and the values that they ignore.

    Raises:
        CheckpointError: the file is not a JSON object.
    """
    stated = checkpoint.read_json(FILE)
    is_sampled = bool(stated.get("do_sample"))
    values: dict[str, Any] = {"temperature": 1.0} if is_sampled else {}
    findings = []
    for field, value in _effective(stated):
        if field.action == "reported":
            findings.append(Finding(field.name, _shown(value), field.reason))
        elif field.action == "implemented" or is_sampled:
            name = _PARAMETER_OF.get(field.name, field.name)
            param = (value,) if name == "stop" and isinstance(value, str) else value
            try:
                sampling_params({name: param})
            except RequestError as error:
                findings.append(Finding(field.name, _shown(value), str(error)))
            else:
                values[name] = param
    if "min_tokens" in values:
        values.pop("min_length", None)  # as in transformers
    return sampling_params(values), findings


def _effective(stated: dict[str, Any]) -> Iterator[tuple[Field, Any]]:
    """Yield the fields whose values could change an answer, with their values."""
    for field in FIELDS:
        value = stated.get(field.name)
        is_neutral = value is None or value in field.neutral
        if not is_neutral and field.action != "no effect" and field.name not in _NO_PARAMETER:
            yield field, value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
