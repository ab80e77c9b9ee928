"""What a prompt comes to, in the shape of a body that asks for its answer."""

from collections.abc import Sequence as Seq
from typing import Any

import msgspec
from msgspec import Raw

from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.constraint import Constraint, JsonObject, JsonSchema, OneOf, Regex
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.message import image_parts_of
from vlmkit.types.prompt_tokens import PromptMedium, PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.sampling import OF_MODELS, SamplingParams
from vlmkit_server.apis.openai_chat.wire import ChatRequest
from vlmkit_server.apis.openai_completions.wire import CompletionRequest
from vlmkit_server.apis.tokens.wire_render import (
    Rendered,
    RenderedFeatures,
    RenderedImage,
    TokenRange,
)
from vlmkit_server.exchange.json_pieces import HOLE

_PLAIN = SamplingParams()
_EXTENSIONS = (  # vLLM has no such parameters
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "repeat_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
)


def rendered(
    body: ChatRequest | CompletionRequest,
    model: str,
    request: Request,
    tokens: PromptTokens,
    facts: RunnerFacts,
) -> Rendered:
    """Return one prompt but for its text, and how its answer would be made.

    Args:
        body: what was sent.
        model: what the model was asked for by.
        request: what it comes to.
        tokens: the tokens of its prompt.
        facts: of the model.
    """
    return Rendered(
        request_id=request.id,
        model=model,
        prompt=HOLE,
        token_ids=tokens.token_ids,
        features=_features(tokens.media) if tokens.media else None,
        sampling_params=_params(request.params or facts.defaults, request.constraint)
        | {"prompt_logprobs": body.prompt_logprobs},
        stream=bool(body.stream),
        stream_options=body.stream_options,
        cache_salt=request.cache_salt or None,
        priority=request.priority,
        num_tokens=len(tokens.token_ids),
        max_model_len=facts.limits.max_sequence_tokens,
        images=_images(tokens.images, request),
    )


def _features(media: Seq[PromptMedium]) -> RenderedFeatures:
    ranges: dict[str, list[TokenRange]] = {}
    digests: dict[str, list[str]] = {}
    for medium in media:
        token_range = TokenRange(medium.start, medium.stop - medium.start)
        ranges.setdefault(medium.kind, []).append(token_range)
        digests.setdefault(medium.kind, []).append(medium.digest.hex())
    return RenderedFeatures(ranges, digests if media[0].digest else None)


def _images(images: Seq[PromptMedium], request: Request) -> list[RenderedImage]:
    sizes = [part.options for part in image_parts_of(request.messages)]
    if len(sizes) != len(images):  # those of files are shown in the model's own way
        sizes = [PLAIN_IMAGE] * len(images)
    return [_image(image, options) for image, options in zip(images, sizes, strict=True)]


def _image(image: PromptMedium, options: ImageOptions) -> RenderedImage:
    width, height = image.size or (None, None)
    used_width, used_height = image.used_size or (None, None)
    return RenderedImage(
        image.num_tokens,
        width,
        height,
        used_width,
        used_height,
        options.detail,
        options.max_tokens,
        options.processor or None,
        image.page,
    )


def _params(params: SamplingParams, constraint: Constraint | None) -> dict[str, Any]:
    """Return how an answer is made, by vLLM's names."""
    fields: dict[str, Any] = msgspec.to_builtins(params)
    for name in OF_MODELS:
        del fields[name]
    for name in _EXTENSIONS:
        if getattr(params, name) == getattr(_PLAIN, name):
            del fields[name]
    num_top = fields.pop("top_logprobs")
    return fields | {
        "logprobs": num_top if params.logprobs else None,
        "logit_bias": params.logit_bias or None,
        "bad_words": params.bad_words or None,
        "allowed_token_ids": params.allowed_token_ids or None,
        "structured_outputs": None if constraint is None else _form(constraint),
    }


def _form(constraint: Constraint) -> dict[str, Any]:
    """Return what an answer must keep to as the field ``structured_outputs`` says it."""
    if isinstance(constraint, JsonObject):
        return {"json_object": True}
    if isinstance(constraint, JsonSchema):
        return {"json": Raw(constraint.text.encode())}
    if isinstance(constraint, Regex):
        return {"regex": constraint.pattern}
    if isinstance(constraint, OneOf):
        return {"choice": constraint.texts}
    return {"grammar": constraint.rules}
