"""Prompts without an answer: rendered in vLLM's shape of a body for ``/inference/v1/generate``.

A router asks for them to send requests to a server that has their prefix cached, and to know their
number of tokens.
"""

import codecs
from collections.abc import Iterator, Mapping, Sequence as Seq
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from litestar.types import ASGIApp
from msgspec import Meta, Raw
from msgspec.structs import replace

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner, RunnerFacts
from vlmkit.types.constraint import Constraint, JsonObject, JsonSchema, OneOf, Regex
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.message import image_parts_of
from vlmkit.types.prompt_tokens import PromptMedium, PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.sampling import OF_MODELS, SamplingParams
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.exchange.json_pieces import HOLE, MANY_EACH, filled, listed
from vlmkit_server.exchange.named_errors import naming_fields
from vlmkit_server.interfaces.conversation import Conversation
from vlmkit_server.wire.sampling_fields import StreamOptions

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
TokenIndex = Annotated[int, Meta(ge=0, lt=2**31)]


class TokenRange(msgspec.Struct):
    """The tokens of an image in the prompt."""

    offset: TokenIndex
    length: TokenIndex


class RenderedFeatures(msgspec.Struct):
    """The images of a prompt, in order; ``mm_hashes`` is null where no pixel was decoded."""

    mm_placeholders: dict[str, list[TokenRange]]
    mm_hashes: dict[str, list[str]] | None


class RenderedImage(msgspec.Struct):
    """One image, an extension: its tokens, its size, and the size in which the model sees it."""

    num_tokens: int
    width: int | None
    height: int | None
    used_width: int | None
    used_height: int | None
    detail: str
    max_image_tokens: int | None
    mm_processor_kwargs: Mapping[str, Any] | None
    page: int | None


class Rendered(msgspec.Struct):
    """One prompt as it would be computed, and how its answer would be made."""

    request_id: str
    model: str
    prompt: str
    token_ids: tuple[int, ...]
    features: RenderedFeatures | None
    sampling_params: dict[str, Any]
    stream: bool
    stream_options: StreamOptions | None
    cache_salt: str | None
    priority: int

    # Extensions.
    num_tokens: int
    max_model_len: int
    images: list[RenderedImage]

    @classmethod
    def of(
        cls,
        model: str,
        request: Request,
        tokens: PromptTokens,
        facts: RunnerFacts,
        num_prompt_logprobs: int | None,
        *,
        stream: bool,
        stream_options: StreamOptions | None = None,
    ) -> "Rendered":
        """Return a prompt without its text, and how its answer would be made.

        Args:
            model: the served name of the model.
            request: the request whose prompt it is.
            tokens: the tokens of the prompt.
            facts: describes the model.
            num_prompt_logprobs: the requested alternatives of each token of the prompt.
            stream: whether the answer would be streamed.
            stream_options: the options of the stream.
        """
        params = _params(request.params or facts.defaults, request.constraint)
        return cls(
            request_id=request.id,
            model=model,
            prompt=HOLE,
            token_ids=tokens.token_ids,
            features=_features(tokens.media) if tokens.media else None,
            sampling_params=params | {"prompt_logprobs": num_prompt_logprobs},
            stream=stream,
            stream_options=stream_options,
            cache_salt=request.cache_salt or None,
            priority=request.priority,
            num_tokens=len(tokens.token_ids),
            max_model_len=facts.limits.max_sequence_tokens,
            images=_images(tokens.images, request),
        )


class InputTokens(msgspec.Struct):
    """The number of tokens of a conversation."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class ReadPrompt(NamedTuple):
    """A conversation whose prompt was read."""

    runner: Runner
    request: Request
    tokens: PromptTokens


async def count(exchange: Exchange, conversation: Conversation) -> ASGIApp:
    """Return how many tokens a conversation has, in OpenAI's shape."""
    prompt = await read_prompt(exchange, conversation)
    return exchange.json(InputTokens(len(prompt.tokens.token_ids)))


async def render(
    exchange: Exchange,
    conversation: Conversation,
    kind: str,
    *,
    light: bool | None,
    stream: bool | None,
    stream_options: StreamOptions | None = None,
) -> ASGIApp:
    """Return the prompt of a conversation; nothing is computed.

    Args:
        exchange: the request.
        conversation: the conversation.
        kind: the beginning of the answer's id.
        light: whether to read only the sizes of images.
        stream: whether the body asks for a stream.
        stream_options: the options of the stream.
    """
    runner, request, tokens = await read_prompt(exchange, conversation, kind, light=bool(light))
    prompt = Rendered.of(
        exchange.model,
        request,
        tokens,
        runner.facts,
        conversation.num_prompt_logprobs,
        stream=bool(stream),
        stream_options=stream_options,
    )
    return exchange.pieces(partial(rendered_pieces, prompt, runner))


async def read_prompt(
    exchange: Exchange, conversation: Conversation, kind: str = "", *, light: bool = False
) -> ReadPrompt:
    """Let the model's runner read the prompt of a conversation.

    Args:
        exchange: the request.
        conversation: the conversation.
        kind: the beginning of the request's id; empty for a request without one.
        light: whether to read only the sizes of images.

    Raises:
        RequestError: a field is wrong; the error names it.
    """
    check_no_server_tools(conversation)
    runner = await exchange.lease(conversation.model)
    request_id = exchange.head(kind, runner).id if kind else ""
    with naming_fields(conversation.field_of):
        request = await exchange.request(conversation, runner, request_id, light=light)
        return ReadPrompt(runner, request, await runner.atokenize(request))


def check_no_server_tools(conversation: Conversation) -> None:
    """Refuse tools of the server.

    Raises:
        RequestError: there are some.
    """
    if conversation.server_tools:
        raise RequestError(
            "server_tools cannot be rendered: they are answered in rounds", param="server_tools"
        )


def rendered_pieces(prompt: Rendered, runner: Runner) -> Iterator[bytes]:
    """Encode a prompt, in pieces: there can be many tokens."""
    text = _text(prompt.token_ids, runner)
    return filled(replace(prompt, token_ids=HOLE), [text, listed(prompt.token_ids, MANY_EACH)])


def _text(token_ids: Seq[int], runner: Runner) -> Iterator[bytes]:
    """Encode the text of tokens, special ones included, in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    yield b'"'
    for start in range(0, len(token_ids), MANY_EACH):
        content = b"".join(map(runner.token_bytes, token_ids[start : start + MANY_EACH]))
        yield msgspec.json.encode(decoder.decode(content))[1:-1]
    yield msgspec.json.encode(decoder.decode(b"", final=True))[1:-1] + b'"'


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
