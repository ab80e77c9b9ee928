"""A request's parameters, and whether the model that it asks can honour them."""

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

SAYS_NOTHING = SamplingParams()


def checked_params(request: Request, facts: RunnerFacts, tokenizer: Tokenizer) -> SamplingParams:
    """Return how tokens are chosen for a request.

    Raises:
        RequestError: a value is out of range, or something that this model cannot honour.
    """
    if request.task != "generate":
        is_score = request.task == "score"
        return SamplingParams(
            logprobs=is_score,
            top_logprobs=request.params.top_logprobs if is_score and request.params else 0,
            n=max(1, len(request.continuations)),
        ).checked()
    params = (request.params or facts.defaults).checked()
    check_followed(params, facts.sampler.ignores)
    check_ids(params.logit_bias, facts.limits, "logit_bias")
    check_ids(params.stop_token_ids, facts.limits, "stop_token_ids")
    check_ids(params.allowed_token_ids, facts.limits, "allowed_token_ids")
    if not params.skip_special_tokens:
        check_honoured("skip_special_tokens", tokenizer)
    return params


def with_min_length(params: SamplingParams, num_prompt: int) -> SamplingParams:
    """Return parameters whose ``min_tokens`` says what ``min_length`` does after such a prompt."""
    least = max(params.min_tokens, params.min_length - num_prompt)
    if params.max_tokens is not None:
        least = min(least, params.max_tokens)
    return params if least == params.min_tokens else replace(params, min_tokens=least)


def check_followed(params: SamplingParams, ignored: Collection[str]) -> None:
    """Refuse parameters that the model's sampler does not follow, unless they say nothing.

    Raises:
        RequestError: there is one.
    """
    for name in sorted(ignored):
        if getattr(params, name) != getattr(SAYS_NOTHING, name):
            raise RequestError(
                f"{name} is not followed by this model's sampler",
                param=name,
                code="unsupported_parameter",
            )


def followed(params: SamplingParams, ignored: Collection[str]) -> SamplingParams:
    """Return parameters without those that a sampler does not follow."""
    return replace(params, **{name: getattr(SAYS_NOTHING, name) for name in ignored})


def check_ids(token_ids: Iterable[int], limits: EngineLimits, param: str) -> None:
    """Refuse tokens that the model does not have.

    Raises:
        RequestError: there is one.
    """
    wrong = next((i for i in token_ids if not 0 <= i < limits.vocab_size), None)
    if wrong is not None:
        raise RequestError(
            f"token id {wrong} is not in the vocabulary of {limits.vocab_size}", param=param
        )


def check_options(request: Request, tokenizer: Tokenizer) -> None:
    """Refuse options of a prompt that have no meaning for a request, or that nobody honours.

    Raises:
        RequestError: there is one.
    """
    for option in request.options.asked:
        if not request.messages:
            raise RequestError(f"{option} is for messages, not for a text", param=option)
        check_honoured(option, tokenizer)
    if request.places:
        check_honoured("return_places", tokenizer)
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
    """Refuse what is asked of images, and of files that may hold some, and nobody honours."""
    files = [part for part in parts_of(request.messages) if isinstance(part, FilePart)]
    shown = [part.options for part in image_parts_of(request.messages)]
    shown += [file.options for file in files]
    shown += [placed.options for placed in request.images]
    bounds = [options.max_tokens for options in shown] + [file.max_tokens for file in files]
    if any(bound is not None for bound in bounds):
        check_honoured("max_image_tokens", tokenizer)
    if any(options.processor for options in shown):
        check_honoured("mm_processor_kwargs", tokenizer)


def check_honoured(option: Option, tokenizer: Tokenizer) -> None:
    """Refuse an option that the model's tokenizer does not know.

    Raises:
        RequestError: it does not.
    """
    if option not in tokenizer.honours:
        raise RequestError(
            f"{option} is not supported by this model's tokenizer",
            param=option,
            code="unsupported_parameter",
        )
