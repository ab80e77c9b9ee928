"""Checks whether the model of a request supports its parameters and prompt options."""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from vlmkit.errors import RequestError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.interfaces.tokenizer import Option, Tokenizer
from vlmkit.types.media import FilePart
from vlmkit.types.message import TextPart, image_parts_of, parts_of
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams

DEFAULTS = SamplingParams()


def checked_params(request: Request, facts: RunnerFacts, tokenizer: Tokenizer) -> SamplingParams:
    """Return the sampling parameters of a request.

    Raises:
        RequestError: a value is out of range, or this model does not support it.
    """
    if request.task != "generate":
        is_score = request.task == "score"
        return SamplingParams(
            logprobs=is_score,
            top_logprobs=request.params.top_logprobs if is_score and request.params else 0,
            n=max(1, len(request.continuations)),
        ).checked()
    params = (request.params or facts.defaults).checked()
    check_sampler_params(params, facts.sampler.ignores)
    check_ids(params.logit_bias, facts.limits, "logit_bias")
    check_ids(params.stop_token_ids, facts.limits, "stop_token_ids")
    check_ids(params.allowed_token_ids, facts.limits, "allowed_token_ids")
    if not params.skip_special_tokens:
        check_option("skip_special_tokens", tokenizer)
    return params


def with_min_length(params: SamplingParams, num_prompt: int) -> SamplingParams:
    """Return parameters whose ``min_tokens`` includes ``min_length``, given the prompt's length."""
    least = max(params.min_tokens, params.min_length - num_prompt)
    if params.max_tokens is not None:
        least = min(least, params.max_tokens)
    return params if least == params.min_tokens else replace(params, min_tokens=least)


def check_sampler_params(params: SamplingParams, ignored: Collection[str]) -> None:
    """Refuse parameters that the model's sampler ignores, unless they have their default.

    Raises:
        RequestError: there is one.
    """
    for name in sorted(ignored):
        if getattr(params, name) != getattr(DEFAULTS, name):
            raise RequestError(
                f"{name} is not followed by this model's sampler",
                param=name,
                code="unsupported_parameter",
            )


def without_ignored(params: SamplingParams, ignored: Collection[str]) -> SamplingParams:
    """Return parameters in which those that a sampler ignores have their default."""
    return replace(params, **{name: getattr(DEFAULTS, name) for name in ignored})


def check_ids(token_ids: Iterable[int], limits: EngineLimits, param: str) -> None:
    """Refuse token ids that are not in the vocabulary.

    Raises:
        RequestError: there is one.
    """
    wrong = next((i for i in token_ids if not 0 <= i < limits.vocab_size), None)
    if wrong is not None:
        raise RequestError(
            f"token id {wrong} is not in the vocabulary of {limits.vocab_size}", param=param
        )


def check_options(request: Request, tokenizer: Tokenizer) -> None:
    """Refuse prompt options that do not apply to a request, or that its model does not support.

    Raises:
        RequestError: there is one.
    """
    for option in request.options.asked:
        if not request.messages:
            raise RequestError(f"{option} is for messages, not for a text", param=option)
        check_option(option, tokenizer)
    if request.places:
        check_option("return_places", tokenizer)
    _check_images(request, tokenizer)
    if request.options.continue_final_message:
        last = request.messages[-1]
        is_text = bool(last.parts) and isinstance(last.parts[-1], TextPart)
        if last.role != "assistant" or not is_text or not last.text.strip():
            raise RequestError(
                "a message that goes on must be the assistant's, and end with text",
                param="continue_final_message",
            )


def _check_images(request: Request, tokenizer: Tokenizer) -> None:
    """Refuse image options that the model does not support; files may hold images, too."""
    files = [part for part in parts_of(request.messages) if isinstance(part, FilePart)]
    shown = [part.options for part in image_parts_of(request.messages)]
    shown += [file.options for file in files]
    shown += [placed.options for placed in request.images]
    bounds = [options.max_tokens for options in shown] + [file.max_tokens for file in files]
    if any(bound is not None for bound in bounds):
        check_option("max_image_tokens", tokenizer)
    if any(options.processor for options in shown):
        check_option("mm_processor_kwargs", tokenizer)


def check_option(option: Option, tokenizer: Tokenizer) -> None:
    """Refuse an option that the model's tokenizer does not support.

    Raises:
        RequestError: the tokenizer does not support it.
    """
    if option not in tokenizer.honours:
        raise RequestError(
            f"{option} is not supported by this model's tokenizer",
            param=option,
            code="unsupported_parameter",
        )
