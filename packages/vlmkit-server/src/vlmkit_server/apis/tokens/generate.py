"""``POST /inference/v1/generate``: tokens in, tokens out, with images in their places.

For routers, trainers and evaluations that render prompts themselves. It is off unless the operator
enables it, since tokens are used as they are, and a prompt may contain any control token.
"""

from collections.abc import Sequence as Seq
from functools import partial

from litestar.types import ASGIApp

from vlmkit.errors import ImageError, PromptTooLong, RequestError
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.placed_image import PlacedImage
from vlmkit.types.request import Request as RunnerRequest
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.apis.openai_chat.events import UsageEvents
from vlmkit_server.apis.openai_chat.prompt_logprobs import check_not_streamed, prompt_logprobs
from vlmkit_server.apis.tokens.generated import GeneratedEvents
from vlmkit_server.apis.tokens.wire_generate import (
    GenerateFeatures,
    GenerateParams,
    GenerateRequest,
    ShownImage,
)
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.prompt_scorer import PromptScorer
from vlmkit_server.conversation.request_builder import check_num_images
from vlmkit_server.exchange.json_pieces import drained
from vlmkit_server.exchange.named_errors import media_names, naming_fields, naming_media
from vlmkit_server.interfaces.conversation import AnswerHead
from vlmkit_server.wire.answer_forms import Formed, RequestedForm, requested_form
from vlmkit_server.wire.plain_prompts import check_plain_size
from vlmkit_server.wire.sampling import parameter_values

IMAGE_URLS = "features.image_urls"
IMAGE_HASHES = "features.mm_hashes.image"
PLACEHOLDERS = "features.mm_placeholders.image"


async def generate(exchange: Exchange, body: GenerateRequest) -> ASGIApp:
    """Generate the tokens after those of a prompt."""
    runner = await exchange.lease(body.model)
    options = body.stream_options
    if options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true", param="stream_options")
    head = exchange.head("generate", runner)
    if body.request_id is not None:
        head = AnswerHead(body.request_id, head.created, head.model, head.system_fingerprint)
    request = await _runner_request(exchange, body, runner.facts, head.id)
    num_top = body.sampling_params.prompt_logprobs if body.sampling_params else None
    scores: list[Sample] = []
    field_of = partial(_field_of, body=body)
    with naming_fields(field_of):
        if num_top is not None:
            check_not_streamed(body.stream)
            scores = await PromptScorer(runner, num_top, "prompt_logprobs").score(request)
        stream = await runner.asubmit(request)
    answer = naming_media(stream, media_names(request, field_of))
    has_logprobs = request.params is not None and request.params.logprobs
    events = GeneratedEvents(
        head,
        runner.token_bytes if has_logprobs else None,
        prompt_logprobs(runner, drained(scores)) if scores else None,
        usage=UsageEvents(options, lambda: stream.usage),
    )
    if body.stream:
        hides_sizes = bool(options and options.include_obfuscation)
        return exchange.stream_chunks(answer, events, hides_sizes=hides_sizes)
    return exchange.whole_of(answer, events.encode_whole)


async def _runner_request(
    exchange: Exchange, body: GenerateRequest, facts: RunnerFacts, request_id: str
) -> RunnerRequest:
    """Return the request for the runner."""
    given = body.sampling_params or GenerateParams()
    with naming_fields(partial(_field_of, body=body)):
        check_plain_size([body.token_ids], exchange.service.settings.max_text_chars, facts)
        params, form = _params(given, facts), _form(given)
    images = await _images(exchange, body.features, body.images, facts) if body.features else []
    return RunnerRequest(
        token_ids=tuple(body.token_ids),
        images=images,
        params=params,
        clamp_max_tokens=exchange.service.settings.clamps_max_tokens,
        fields=exchange.plugin_fields,
        constraint=form.constraint if form else None,
        tenant=exchange.caller.tenant,
        account=exchange.caller.account,
        trace=exchange.caller.trace,
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        id=request_id,
    )


async def _images(
    exchange: Exchange,
    features: GenerateFeatures,
    sizes: Seq[ShownImage] | None,
    facts: RunnerFacts,
) -> list[PlacedImage]:
    """Fetch and check the images of a body, each with the range of its tokens."""
    ranges, urls = features.mm_placeholders.image, features.image_urls or []
    digests = features.mm_hashes.image if features.mm_hashes else None
    check_num_images(len(ranges), facts, IMAGE_URLS)
    for given, name in ((urls, IMAGE_URLS), (digests, IMAGE_HASHES), (sizes, "images")):
        if given is not None and len(given) != len(ranges):
            raise RequestError(f"{name} has not one for each image", param=name)
    sources = [(f"{IMAGE_URLS}[{number}]", url) for number, url in enumerate(urls)]
    images = await exchange.builder.media.open_urls(sources, facts, exchange.caller.account)
    return [
        PlacedImage(
            opened.image,
            tokens.offset,
            tokens.offset + tokens.length,
            bytes.fromhex(digests[number]) if digests else None,
            _options(sizes[number]) if sizes else PLAIN_IMAGE,
            opened.fetch,
        )
        for number, (opened, tokens) in enumerate(zip(images, ranges, strict=True))
    ]


def _params(given: GenerateParams, facts: RunnerFacts) -> SamplingParams:
    """Return how tokens are chosen, on top of the model's own defaults."""
    values = parameter_values(given, given.stop)
    if given.n is not None:
        values["n"] = given.n
    if given.top_k == -1:  # vLLM's older way to keep all
        values["top_k"] = 0
    if given.logprobs is not None:
        values |= {"logprobs": True, "top_logprobs": given.logprobs}
    return facts.defaults.replaced(values)


def _options(sizes: ShownImage) -> ImageOptions:
    """Return how large an image was shown."""
    return ImageOptions(
        detail=sizes.detail or "auto",
        max_tokens=sizes.max_image_tokens,
        processor=sizes.mm_processor_kwargs or {},
    )


def _form(given: GenerateParams) -> RequestedForm | None:
    return requested_form(Formed(structured_outputs=given.structured_outputs))


def _field_of(error: RequestError, body: GenerateRequest) -> str | None:
    """Return which field of a body an error is about."""
    field = error.param or ""
    if isinstance(error, ImageError) and error.index is not None:
        return f"{IMAGE_URLS}[{error.index}]"
    if field.startswith("images["):
        return PLACEHOLDERS + field.removeprefix("images")
    if field == "messages":  # those that show the images, unless the prompt is too long
        is_long = isinstance(error, PromptTooLong) or body.features is None
        return "token_ids" if is_long else IMAGE_URLS
    if field.partition(".")[0] in ShownImage.__struct_fields__:
        return "images"
    if field == "constraint" and (form := _form(body.sampling_params or GenerateParams())):
        field = form.field
    is_param = field.partition(".")[0] in GenerateParams.__struct_fields__
    return f"sampling_params.{field}" if is_param else error.param
