"""Answers of ``/v1/responses``: OpenAI's objects, and their encoding as JSON.

Streamed answers are encoded in :mod:`vlmkit_server.apis.openai_responses.events`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from vlmkit.types.completion import Choice, Completion, FinishReason, Usage
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.apis.openai_chat.answer import LogprobsOf, logprob_pieces
from vlmkit_server.apis.openai_responses import wire as responses
from vlmkit_server.apis.openai_responses.items import (
    CallItem,
    ExecutedCallItem,
    MessageItem,
    OutputItem,
    OutputTextContent,
    ReasoningItem,
    ReasoningTextContent,
    in_json,
    new_id,
)
from vlmkit_server.apis.openai_responses.namespaces import QualifiedName, response_tools
from vlmkit_server.conversation.executed_calls import Round
from vlmkit_server.interfaces.conversation import NO_EXTRAS, Extras
from vlmkit_server.wire.answer_forms import TextForm
from vlmkit_server.wire.image_transforms import ImageTransform, image_transforms

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
_encode = msgspec.json.encode


class InputDetails(msgspec.Struct):
    """Kinds of input tokens; ``image_tokens`` and ``image_tokens_each`` are extensions."""

    cached_tokens: int
    image_tokens: int
    image_tokens_each: tuple[int, ...]
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Kinds of tokens in the answer."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """The tokens of a request."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "ResponseUsage":
        """Return the usage of a stream in the shape of this API."""
        return cls(
            usage.prompt_tokens,
            InputDetails(usage.cached_tokens, sum(usage.image_tokens), usage.image_tokens),
            usage.completion_tokens,
            OutputDetails(usage.reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )


class ResponseError(msgspec.Struct):
    """The reason why an answer failed; this API has one code for all reasons."""

    message: str
    code: Literal["server_error"] = "server_error"


class ReasoningSettings(msgspec.Struct):
    """The requested reasoning effort."""

    effort: str | None = None
    summary: None = None


class ResponseHead(msgspec.Struct, kw_only=True):
    """The fields that all bodies of one response repeat: how it was requested."""

    id: str
    created_at: int
    model: str
    store: bool
    temperature: float
    top_p: float
    top_logprobs: int
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    text: responses.TextConfig
    tool_choice: str | responses.ChosenFunction | responses.AllowedTools
    tools: list[responses.FunctionTool | responses.NamespaceTool]
    user: str | None
    background: bool
    object: Literal["response"] = "response"
    service_tier: Literal["default"] = "default"
    truncation: Literal["auto", "disabled"] = "disabled"
    truncated_items: int | msgspec.UnsetType = (
        msgspec.UNSET
    )  # an extension: the number of oldest items left out


class Incomplete(msgspec.Struct):
    """The reason why an answer is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseBody(ResponseHead, kw_only=True):
    """A response: its request and its outcome; the last two fields are extensions."""

    status: ResponseStatus
    completed_at: int | None
    incomplete_details: Incomplete | None
    error: ResponseError | None
    output: list[OutputItem]
    usage: ResponseUsage | None
    image_transforms: list[ImageTransform] | msgspec.UnsetType = msgspec.UNSET
    places: tuple[GroundedRegion, ...] | msgspec.UnsetType = msgspec.UNSET


def response_head(
    body: responses.ResponsesRequest,
    model: str,
    params: SamplingParams,
    response_id: str,
    *,
    is_stored: bool,
    num_truncated: int = 0,
) -> ResponseHead:
    """Return the fields that all bodies of a response repeat.

    Args:
        body: the body of the request.
        model: the requested name of the model.
        params: the sampling parameters of the answer.
        response_id: the id of the response.
        is_stored: whether the response is stored.
        num_truncated: the number of items that were left out.
    """
    effort = body.reasoning.effort if body.reasoning else None
    return ResponseHead(
        id=response_id,
        created_at=int(time.time()),
        model=model,
        store=is_stored,
        background=bool(body.background),
        temperature=params.temperature,
        top_p=params.top_p,
        top_logprobs=params.top_logprobs,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningSettings(effort),
        safety_identifier=body.safety_identifier,
        text=responses.TextConfig(format=(body.text and body.text.format) or TextForm()),
        tool_choice=body.tool_choice or "auto",
        tools=response_tools(body.tools),
        user=body.user,
        truncation=body.truncation or "disabled",
        truncated_items=num_truncated or msgspec.UNSET,
    )


class ResponseBodies:
    """Encodes the bodies of one response; the fields that all bodies repeat are encoded once.

    Args:
        head: the fields that all bodies repeat.
        extras: what the final body reports besides its output.
    """

    def __init__(self, head: ResponseHead, extras: Extras = NO_EXTRAS) -> None:
        self.id = head.id
        self._has_transforms = extras.image_transforms
        self._has_places = extras.places
        self._start = _encode(head)[:-1] + b","

    def initial(self) -> bytes:
        """Return the body before the answer starts."""
        return self._body("in_progress")

    def final(
        self,
        finish_reason: FinishReason | None,
        output: Sequence[OutputItem],
        usage: Usage,
        places: Sequence[GroundedRegion] = (),
    ) -> bytes:
        """Return the body of an answer that is complete, or that reached its length limit."""
        extensions: dict[str, Any] = {}
        if self._has_transforms:
            extensions["image_transforms"] = image_transforms(usage.images)
        if self._has_places:
            extensions["places"] = places
        usage_body = ResponseUsage.of(usage)
        return self._body(
            response_status(finish_reason), output=output, usage=usage_body, **extensions
        )

    def cancelled(self) -> bytes:
        """Return the body of an answer that its client cancelled."""
        return self._body("cancelled")

    def failed(self, message: str, output: Sequence[OutputItem]) -> bytes:
        """Return the body of an answer that failed."""
        return self._body("failed", output=output, error=ResponseError(message))

    def _body(self, status: ResponseStatus, **fields: Any) -> bytes:
        is_incomplete = status == "incomplete"
        values: dict[str, Any] = {
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": Incomplete("max_output_tokens") if is_incomplete else None,
            "error": None,
            "output": [],
            "usage": None,
        }
        return self._start + _encode(values | fields)[1:]


def response_status(finish_reason: FinishReason | None) -> Literal["completed", "incomplete"]:
    """Return whether an answer is complete or was cut off."""
    return "completed" if finish_reason == "stop" else "incomplete"


def output_items_of_tool_loop(rounds: Iterable[Round]) -> list[OutputItem]:
    """Return the items of an answer whose calls the server executed, in the order of the rounds."""
    output: list[OutputItem] = []
    reason: FinishReason | None = None
    for each in rounds:
        reason = each.choice.finish_reason
        output += _text_items(each.choice)
        for call, result in each.calls:
            item = ExecutedCallItem.started(call.id, call.name)
            item.arguments, item.status = call.arguments, "incomplete"
            if result is not None:
                item.finish(result.text, is_error=result.is_error)
            output.append(item)
    if not output:
        output.append(MessageItem(new_id("msg"), "completed", (OutputTextContent(),)))
    if not isinstance(output[-1], ExecutedCallItem):
        output[-1].status = response_status(reason)
    return output


def _text_items(choice: Choice) -> list[OutputItem]:
    """Return the items of the reasoning and the text of a choice, if it has any."""
    output: list[OutputItem] = []
    if choice.reasoning:
        output.append(
            ReasoningItem(new_id("rs"), "completed", (ReasoningTextContent(choice.reasoning),))
        )
    if choice.text:
        output.append(MessageItem(new_id("msg"), "completed", (OutputTextContent(choice.text),)))
    return output


def output_items(
    completion: Completion,
    logprobs: LogprobsOf | None,
    token_bytes: Callable[[int], bytes],
    names: Mapping[str, QualifiedName] = MappingProxyType({}),
) -> list[OutputItem]:
    """Return the items of a whole answer: its reasoning, text and calls.

    Args:
        completion: a completion of one choice.
        logprobs: encodes samples; None if the client requests no log-probabilities.
        token_bytes: decodes a token id to bytes.
        names: the parts of functions' qualified names.
    """
    (choice,) = completion.choices
    output: list[OutputItem] = []
    if choice.reasoning:
        output.append(
            ReasoningItem(new_id("rs"), "completed", (ReasoningTextContent(choice.reasoning),))
        )
    if choice.text or not (choice.reasoning or choice.tool_calls):
        values = OutputTextContent(choice.text)
        if logprobs is not None:
            samples = choice.samples[completion.usage.reasoning_tokens :]
            usage_body = list(_samples_of_text(samples, choice.text, token_bytes))
            choice.samples.clear()
            values.logprobs = in_json(logprob_pieces(logprobs, usage_body))
        output.append(MessageItem(new_id("msg"), "completed", (values,)))
    for call in choice.tool_calls:
        item = CallItem.started(call.id, call.name, names)
        item.arguments, item.status = call.arguments, "completed"
        output.append(item)
    output[-1].status = response_status(choice.finish_reason)
    return output


def _samples_of_text(
    samples: Iterable[Sample], text: str, token_bytes: Callable[[int], bytes]
) -> Iterator[Sample]:
    """Yield the samples of a text, without those of the calls after it."""
    num_left = len(text.lstrip().encode())
    has_started = False
    for sample in samples:
        if num_left <= 0:
            return
        content = token_bytes(sample.token_id)
        content = content if has_started else content.lstrip()
        has_started = has_started or bool(content)
        num_left -= len(content)
        yield sample
